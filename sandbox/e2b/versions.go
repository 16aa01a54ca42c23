package e2b

// The pinned versions of the coding agents that CodingAgentTemplate installs.
const (
	ClaudeCodeVersion = "2.1.207"
	CodexVersion      = "0.144.1"
	BubVersion        = "0.4.0"
)
