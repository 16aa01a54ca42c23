package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"assay/fault"
	"assay/internal/modeltest"
)

func (a *app) modelserver() *cobra.Command {
	var listen string
	c := &cobra.Command{
		Use:   "modelserver script.yaml",
		Short: "Serve a scripted model, for runs without a network",
		Long: "Serve a scripted model over the Anthropic Messages, OpenAI Responses and OpenAI Chat Completions APIs,\n" +
			"until it is interrupted. The first line it prints is its URL. Point an agent's baseUrl to it.",
		Example: "  " + a.w.Name + " modelserver script.yaml --listen 127.0.0.1:8080",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.serveModel(c.Context(), args[0], listen)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address to listen at; port 0 takes a free one")
	return c
}

func (a *app) serveModel(ctx context.Context, file, listen string) error {
	f, err := os.Open(file)
	if err != nil {
		return &fault.Error{Class: fault.Config, Code: "model-script", What: "open the model's script", Fix: "Name a script file.", Err: err}
	}
	script, err := modeltest.ParseScript(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return &fault.Error{Class: fault.Config, Code: "model-listen", What: "listen at " + listen, Fix: "Choose another address with --listen.", Err: err}
	}
	if _, err := fmt.Fprintf(a.p.Stdout, "http://%s\n", l.Addr()); err != nil {
		return a.wrote(err)
	}
	return modeltest.New(script).Serve(ctx, l)
}
