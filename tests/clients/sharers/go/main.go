// A member of a share group (KIP-932), as ShareMember.java. Its only setting is records=NUMBER, the most of a fetch.
// It joins with the first poll, as Java's client.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

var kinds = map[string]kgo.AckStatus{
	"accept": kgo.AckAccept, "release": kgo.AckRelease, "reject": kgo.AckReject, "renew": kgo.AckRenew,
}

type member struct {
	options []kgo.Opt
	client  *kgo.Client
	polled  map[string]*kgo.Record
	lock    sync.Mutex
	results kgo.ShareAckResults
}

func (m *member) acknowledged(_ *kgo.Client, results kgo.ShareAckResults) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.results = append(m.results, results...)
}

func (m *member) poll(patience time.Duration) {
	if m.client == nil {
		client, err := kgo.NewClient(m.options...)
		if err != nil {
			panic(err)
		}
		m.client = client
	}
	running, end := context.WithTimeout(context.Background(), patience)
	defer end()
	for found := false; !found && running.Err() == nil; {
		m.client.PollFetches(running).EachRecord(func(record *kgo.Record) {
			found = true
			place := fmt.Sprintf("%d:%d", record.Partition, record.Offset)
			m.polled[place] = record
			fmt.Printf("record %s %d %s\n", place, record.DeliveryCount(), record.Value)
		})
	}
}

func (m *member) commit() {
	running, end := context.WithTimeout(context.Background(), 30*time.Second)
	defer end()
	if err := m.client.FlushAcks(running); err != nil {
		fmt.Println("error " + err.Error())
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	for _, result := range m.results {
		var refused *kerr.Error
		switch {
		case result.Err == nil:
			fmt.Printf("committed %d\n", result.Partition)
		case errors.As(result.Err, &refused):
			fmt.Printf("committed %d %s\n", result.Partition, refused.Message)
		default:
			fmt.Printf("committed %d %s\n", result.Partition, result.Err)
		}
	}
	m.results = nil
}

func main() {
	mine := &member{polled: map[string]*kgo.Record{}}
	mine.options = []kgo.Opt{
		kgo.SeedBrokers(os.Args[1]),
		kgo.ShareGroup(os.Args[2]),
		kgo.ConsumeTopics(os.Args[3]),
		kgo.ShareAckCallback(mine.acknowledged),
	}
	for _, setting := range os.Args[4:] {
		most, err := strconv.Atoi(strings.TrimPrefix(setting, "records="))
		if err != nil {
			panic(err)
		}
		mine.options = append(mine.options, kgo.ShareMaxRecords(int32(most)), kgo.ShareMaxRecordsStrict())
	}
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		switch words := strings.Fields(input.Text()); words[0] {
		case "poll":
			patience, err := strconv.Atoi(words[1])
			if err != nil {
				panic(err)
			}
			mine.poll(time.Duration(patience) * time.Millisecond)
		case "commit":
			mine.commit()
		default:
			for _, place := range words[1:] {
				mine.polled[place].Ack(kinds[words[0]])
			}
		}
		fmt.Println(".")
	}
	if mine.client != nil {
		mine.client.Close()
	}
}
