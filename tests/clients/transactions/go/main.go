// Copies records from a topic to another one, exactly once: members of a group read committed records, and write them
// with their offsets in transactions. Every fourth transaction is aborted. Ends when all records have been copied.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

type job struct {
	kafka, source, target, group string
	wanted                       int64
	copied, transactions         atomic.Int64
}

// aborts returns whether the next transaction is one to abort.
func (j *job) aborts() bool { return j.transactions.Add(1)%4 == 0 }

// done counts what a transaction has copied, and returns whether all records are.
func (j *job) done(records int) bool { return j.copied.Add(int64(records)) >= j.wanted }

func must[T any](found T, err error) T {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%+v\n", err)
		os.Exit(1)
	}
	return found
}

func main() {
	given := os.Args[1:]
	one := &job{kafka: given[1], source: given[2], target: given[3], group: given[4]}
	one.wanted = must(strconv.ParseInt(given[5], 10, 64))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	map[string]func(context.Context, *job){"franz": withFranz, "sarama": withSarama}[given[0]](ctx, one)
	must(0, ctx.Err())
	fmt.Println(one.copied.Load(), one.transactions.Load())
}
