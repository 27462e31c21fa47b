// A member of a consumer group (KIP-848), as GroupMember.java.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

type share struct {
	lock  sync.Mutex
	owned map[string]bool
}

func (s *share) change(partitions map[string][]int32, have bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for topic, numbers := range partitions {
		for _, number := range numbers {
			name := fmt.Sprintf("%s-%d", topic, number)
			if have {
				s.owned[name] = true
			} else {
				delete(s.owned, name)
			}
		}
	}
	names := make([]string, 0, len(s.owned))
	for name := range s.owned {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Println("assigned " + strings.Join(names, " "))
}

func main() {
	mine := &share{owned: map[string]bool{}}
	changed := func(have bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) { mine.change(partitions, have) }
	}
	topic := os.Args[3]
	options := []kgo.Opt{
		kgo.SeedBrokers(os.Args[1]),
		kgo.ConsumerGroup(os.Args[2]),
		kgo.ServerSideBalancer(),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(changed(true)),
		kgo.OnPartitionsRevoked(changed(false)),
		kgo.OnPartitionsLost(changed(false)),
	}
	if strings.HasPrefix(topic, "~") {
		topic = topic[1:]
		options = append(options, kgo.ConsumeRegex())
	}
	options = append(options, kgo.ConsumeTopics(topic))
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	running, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	for running.Err() == nil {
		fetches := client.PollFetches(running)
		fetches.EachRecord(func(record *kgo.Record) { fmt.Println("record " + string(record.Value)) })
		if !fetches.Empty() {
			_ = client.CommitUncommittedOffsets(running)
		}
	}
	client.Close()
}
