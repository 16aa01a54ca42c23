#include "textflag.h"

// The kernel calls handlers as C functions on the thread's signal stack:
// DI is the signal, SI its siginfo_t, DX the context.

// A handler that does nothing.
TEXT ·ignore(SB), NOSPLIT|NOFRAME, $0-0
	RET

// A handler that does nothing for a signal that a process sent (si_code is not
// positive), and is the runtime's otherwise.
TEXT ·fault(SB), NOSPLIT|NOFRAME, $0-0
	MOVL	8(SI), AX
	CMPL	AX, $0
	JLE	sent
	MOVQ	·runtimeHandler(SB), AX
	JMP	AX
sent:
	RET

// func ignorePC() uintptr
TEXT ·ignorePC(SB), NOSPLIT, $0-8
	LEAQ	·ignore(SB), AX
	MOVQ	AX, ret+0(FP)
	RET

// func faultPC() uintptr
TEXT ·faultPC(SB), NOSPLIT, $0-8
	LEAQ	·fault(SB), AX
	MOVQ	AX, ret+0(FP)
	RET
