#include "textflag.h"

// func getrlimit(resource uintptr, r *[2]uint64) (errno uintptr)
TEXT ·getrlimit(SB), NOSPLIT, $0-24
	MOVQ	resource+0(FP), DI
	MOVQ	r+8(FP), SI
	MOVL	$97, AX	// SYS_getrlimit
	SYSCALL
	NEGQ	AX
	MOVQ	AX, errno+16(FP)
	RET
