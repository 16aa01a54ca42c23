#include "textflag.h"

// func cloneKeeper(flags, stack uintptr, k *keeper) (pid, errno uintptr)
//
// clone(2) with memory in common and a stack of the child's own, on which it
// calls keep(k) and never returns.
TEXT ·cloneKeeper(SB), NOSPLIT|NOFRAME, $0-40
	MOVQ	flags+0(FP), DI
	MOVQ	stack+8(FP), SI
	MOVQ	k+16(FP), R12
	MOVQ	$0, DX
	MOVQ	$0, R10
	MOVQ	$0, R8
	MOVL	$56, AX	// SYS_clone
	SYSCALL
	CMPQ	AX, $0
	JEQ	child
	CMPQ	AX, $0xfffffffffffff001
	JLS	ok
	NEGQ	AX
	MOVQ	$0, pid+24(FP)
	MOVQ	AX, errno+32(FP)
	RET
ok:
	MOVQ	AX, pid+24(FP)
	MOVQ	$0, errno+32(FP)
	RET
child:
	MOVQ	$0, BP
	SUBQ	$16, SP
	MOVQ	R12, 0(SP)
	CALL	·keep(SB)
	INT	$3	// not reached
