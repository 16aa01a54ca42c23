#include "textflag.h"

// func Vfork(flags uintptr) (pid, errno uintptr)
//
// clone(2) with no stack of the child's own: the child returns first, on the
// stack of the parent, which is suspended meanwhile. The return address is kept
// in a register, because the child's calls overwrite it.
TEXT ·Vfork(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ	flags+0(FP), DI
	MOVQ	$0, SI
	MOVQ	$0, DX
	MOVQ	$0, R10
	MOVQ	$0, R8
	MOVL	$56, AX	// SYS_clone
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	CMPQ	AX, $0xfffffffffffff001
	JLS	ok
	NEGQ	AX
	MOVQ	$0, pid+8(FP)
	MOVQ	AX, errno+16(FP)
	RET
ok:
	MOVQ	AX, pid+8(FP)
	MOVQ	$0, errno+16(FP)
	RET
