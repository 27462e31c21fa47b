package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const members = 3

// withFranz has members that share the partitions. One leaves with an open transaction, and another takes its place.
func withFranz(ctx context.Context, one *job) {
	var all sync.WaitGroup
	for number := range members {
		all.Go(func() {
			if number == 0 {
				copyWithFranz(ctx, one, "franz-leaves", 2)
			}
			copyWithFranz(ctx, one, fmt.Sprint("franz-", number), -1)
		})
	}
	all.Wait()
}

// copyWithFranz copies until all is done, or leaves in the transaction after `quit` ones (-1: never).
func copyWithFranz(ctx context.Context, one *job, id string, quit int) {
	session := must(kgo.NewGroupTransactSession(
		kgo.SeedBrokers(one.kafka), kgo.TransactionalID(id), kgo.ConsumerGroup(one.group), kgo.ConsumeTopics(one.source),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(500*time.Millisecond), kgo.Balancers(kgo.CooperativeStickyBalancer()),
	))
	defer session.Close()
	for one.copied.Load() < one.wanted && ctx.Err() == nil {
		wait, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		fetched := session.PollRecords(wait, 20)
		cancel()
		if err := fetched.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			must(0, err)
		}
		if fetched.NumRecords() == 0 {
			continue
		}
		must(0, session.Begin())
		for _, record := range fetched.Records() {
			copied := &kgo.Record{Topic: one.target, Key: record.Key, Value: record.Value}
			session.Produce(ctx, copied, func(_ *kgo.Record, err error) {
				if err != nil && !errors.Is(err, kgo.ErrAborting) {
					must(0, err)
				}
			})
		}
		quit--
		leaves := quit == 0
		commits := !leaves && !one.aborts()
		if !commits {
			// Ending drops what is still buffered, and an aborted transaction must have records in the log.
			must(0, session.Client().Flush(ctx))
		}
		committed := must(session.End(ctx, kgo.TransactionEndTry(commits)))
		if committed {
			one.done(fetched.NumRecords())
		}
		if leaves {
			return
		}
	}
}
