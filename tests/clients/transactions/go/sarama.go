package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type copier struct {
	*job
	stop context.CancelFunc
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Net.MaxOpenRequests = 1
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Transaction.Retry.Backoff = 10 * time.Millisecond
	return config
}

// withSarama has two members that share the partitions.
func withSarama(ctx context.Context, one *job) {
	inside, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			group := must(sarama.NewConsumerGroup([]string{one.kafka}, one.group, settings()))
			defer group.Close()
			for inside.Err() == nil {
				if err := group.Consume(inside, []string{one.source}, &copier{one, stop}); err != nil && inside.Err() == nil {
					must(0, err)
				}
			}
		})
	}
	all.Wait()
}

func (c *copier) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (c *copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim copies one partition. Its producer has an ID of the partition, so that the next owner fences it.
func (c *copier) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	config := settings()
	config.Producer.Transaction.ID = fmt.Sprint("sarama-", claim.Partition())
	producer := must(sarama.NewAsyncProducer([]string{c.kafka}, config))
	defer producer.Close()
	go func() {
		for err := range producer.Errors() {
			fmt.Println(err)
		}
	}()
	for {
		read := next(session.Context(), claim)
		if len(read) == 0 {
			if session.Context().Err() != nil {
				return nil
			}
			continue
		}
		must(0, producer.BeginTxn())
		for _, record := range read {
			producer.Input() <- &sarama.ProducerMessage{
				Topic: c.target, Key: sarama.ByteEncoder(record.Key), Value: sarama.ByteEncoder(record.Value),
			}
		}
		metadata := sarama.NewConsumerGroupMetadataFromSession(session, c.group, nil)
		err := producer.AddMessageToTxnWithGroupMetadata(read[len(read)-1], metadata, nil)
		if err != nil || c.aborts() {
			// The group starts again from its committed offsets.
			return errors.Join(err, producer.AbortTxn())
		}
		if err := producer.CommitTxn(); err != nil {
			return err
		}
		if c.done(len(read)) {
			c.stop()
			return nil
		}
	}
}

// next waits for up to 20 records.
func next(ctx context.Context, claim sarama.ConsumerGroupClaim) []*sarama.ConsumerMessage {
	var read []*sarama.ConsumerMessage
	late := time.After(100 * time.Millisecond)
	for len(read) < 20 {
		select {
		case record, open := <-claim.Messages():
			if !open {
				return read
			}
			read = append(read, record)
		case <-late:
			return read
		case <-ctx.Done():
			return nil
		}
	}
	return read
}
