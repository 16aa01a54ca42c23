#include "textflag.h"

// The kernel calls handlers as C functions on the thread's signal stack:
// R0 is the signal, R1 its siginfo_t, R2 the context.

// A handler that does nothing.
TEXT ·ignore(SB), NOSPLIT|NOFRAME, $0-0
	RET

// A handler that does nothing for a signal that a process sent (si_code is not
// positive), and is the runtime's otherwise.
TEXT ·fault(SB), NOSPLIT|NOFRAME, $0-0
	MOVW	8(R1), R3
	CMPW	$0, R3
	BLE	sent
	MOVD	·runtimeHandler(SB), R3
	JMP	(R3)
sent:
	RET

// func ignorePC() uintptr
TEXT ·ignorePC(SB), NOSPLIT, $0-8
	MOVD	$·ignore(SB), R0
	MOVD	R0, ret+0(FP)
	RET

// func faultPC() uintptr
TEXT ·faultPC(SB), NOSPLIT, $0-8
	MOVD	$·fault(SB), R0
	MOVD	R0, ret+0(FP)
	RET
