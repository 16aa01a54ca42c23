// Command assay runs evals of AI coding agents in sandboxes; see `assay --help`.
package main

import (
	"assay"
	"assay/app"
	"assay/builtin"
)

func main() {
	app.MainWith(assay.Suite{}, app.Registries{Sandboxes: builtin.Sandboxes(), Agents: builtin.Agents(), Shapes: builtin.Shapes()})
}
