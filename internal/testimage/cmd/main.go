// Command cmd puts the test images into the container engine, or removes them:
//
//	go run ./internal/testimage/cmd [--rm] [name...]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"assay/internal/testimage"
	"assay/internal/testreq"
)

func main() {
	remove := flag.Bool("rm", false, "remove the test images from the engine")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *remove, flag.Args()); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, remove bool, names []string) error {
	dial, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cli, host, err := testreq.DialEngine(dial)
	if err != nil {
		return fmt.Errorf("%w\nstart one with ./dev engine", err)
	}
	defer func() { _ = cli.Close() }()
	if remove {
		gone, err := testimage.Remove(ctx, cli)
		for _, g := range gone {
			fmt.Println("removed", g)
		}
		return err
	}
	has := map[string]string{}
	for _, k := range testimage.Kinds() {
		has[k.Name] = k.Has
		if flag.NArg() == 0 {
			names = append(names, k.Name)
		}
	}
	fmt.Println("engine", host)
	for _, name := range names {
		start := time.Now()
		ref, err := testimage.Build(ctx, cli, name)
		switch {
		case errors.Is(err, testimage.ErrHost):
			fmt.Printf("%-12s not made: %v\n", name, err)
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		default:
			fmt.Printf("%-12s %-40s %5.1fs  %s\n", name, ref, time.Since(start).Seconds(), has[name])
		}
	}
	return nil
}
