package cli

import "github.com/spf13/cobra"

func (a *app) showCommand() *cobra.Command   { return &cobra.Command{Use: "show"} }
func (a *app) initCommand() *cobra.Command   { return &cobra.Command{Use: "init"} }
func (a *app) schemaCommand() *cobra.Command { return &cobra.Command{Use: "schema"} }
func (a *app) doctor() *cobra.Command        { return &cobra.Command{Use: "doctor"} }
