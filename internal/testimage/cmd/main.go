// Command cmd puts the test images into the container engine, or removes them,
// or only says where an engine answers:
//
//	go run ./internal/testimage/cmd [--rm | --ping] [name...]
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
	ping := flag.Bool("ping", false, "print the address of the engine that answers, and do nothing else")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *remove, *ping, flag.Args()); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, remove, ping bool, names []string) error {
	dial, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cli, host, err := testreq.DialEngine(dial)
	if err != nil {
		return err
	}
	defer func() { _ = cli.Close() }()
	if ping {
		fmt.Println(host)
		return nil
	}
	if remove {
		gone, err := testimage.Remove(ctx, cli)
		for _, g := range gone {
			fmt.Println("removed", g)
		}
		return err
	}
	has, all := map[string]string{}, len(names) == 0
	for _, k := range testimage.Kinds() {
		has[k.Name] = k.Has
		if all {
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
