// Package coding is what the adapters of coding CLIs share: finding and
// installing a pinned CLI, running one turn of it and reading its event lines in
// bounded memory, canonical tool names, judged failures of the model's service,
// and what an agent under test can be given (skills, MCP servers, plugins).
package coding
