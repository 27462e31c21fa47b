// Writes records and reads them back as a member of a group: TOPIC VALUE..., with the login as JSON in the first line of
// standard input.
//
// Without an authority it neither logs in nor asks for TLS. Without values it writes each further line of its input as it
// comes, and reads all the while. In the end it prints the values as a JSON list. Where it is not let in, or does not
// believe the server, it prints why and ends with status 3.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const (
	refused = 3
	most    = 120 * time.Second
	longest = 1 << 20 // bytes of a line: a login has a token
)

type login struct {
	Address, Mechanism, Authority, Name, Password, Token, Certificate string
}

func main() {
	var given login
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, longest)
	if !input.Scan() {
		panic("no login")
	}
	must(json.Unmarshal(input.Bytes(), &given))
	topic, values := os.Args[1], os.Args[2:]
	options := given.options()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	var found []string
	if len(values) == 0 {
		found = follow(ctx, options, topic, input)
	} else {
		write(ctx, options, topic, values)
		found = read(ctx, options, topic, len(values))
	}
	must(json.NewEncoder(os.Stdout).Encode(found))
}

func (given login) options() []kgo.Opt {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(given.Address, ",")...),
		kgo.MaxVersions(kversion.Stable()),
		kgo.AllowAutoTopicCreation(),
	}
	if given.Authority == "" {
		return options
	}
	pem, err := os.ReadFile(given.Authority)
	must(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	secured := &tls.Config{RootCAs: trusted}
	// By itself it tries for ever: some failures of a handshake pass.
	options = append(options, kgo.RecordDeliveryTimeout(5*time.Second), kgo.RequestRetries(2))
	if given.Certificate != "" {
		own, err := tls.LoadX509KeyPair(given.Certificate, given.Certificate)
		must(err)
		secured.Certificates = []tls.Certificate{own}
	}
	options = append(options, kgo.DialTLSConfig(secured))
	if mechanism := given.sasl(); mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	return options
}

func (given login) sasl() sasl.Mechanism {
	switch given.Mechanism {
	case "PLAIN":
		return plain.Auth{User: given.Name, Pass: given.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: given.Name, Pass: given.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: given.Name, Pass: given.Password}.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: given.Token}.AsMechanism()
	}
	return nil
}

func write(ctx context.Context, options []kgo.Opt, topic string, values []string) {
	client, err := kgo.NewClient(append(options, kgo.DefaultProduceTopic(topic))...)
	must(err)
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		refuse(err)
	}
	for _, value := range values {
		must(client.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr())
	}
}

func read(ctx context.Context, options []kgo.Opt, topic string, count int) []string {
	client := member(options, topic)
	defer client.Close()
	found := []string{}
	for len(found) < count {
		found = append(found, take(ctx, client)...)
	}
	return found
}

// follow writes each line of the input as it comes, and reads meanwhile; what it has read when it has seen them all.
func follow(ctx context.Context, options []kgo.Opt, topic string, input *bufio.Scanner) []string {
	client := member(append(options, kgo.DefaultProduceTopic(topic)), topic)
	defer client.Close()
	found, missing := []string{}, map[string]bool{}
	see := func(values []string) {
		found = append(found, values...)
		for _, value := range values {
			delete(missing, value)
		}
	}
	for input.Scan() {
		line := input.Text()
		must(client.ProduceSync(ctx, kgo.KeyStringRecord(line, line)).FirstErr())
		missing[line] = true
		see(take(nil, client))
	}
	must(input.Err())
	for len(missing) > 0 {
		see(take(ctx, client))
	}
	return found
}

func member(options []kgo.Opt, topic string) *kgo.Client {
	reading := []kgo.Opt{
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	client, err := kgo.NewClient(append(options, reading...)...)
	must(err)
	return client
}

// take polls once; without a context it waits for nothing.
func take(ctx context.Context, client *kgo.Client) []string {
	fetches := client.PollFetches(ctx)
	for _, failed := range fetches.Errors() {
		// A group that has lost its coordinator: the library tells of it, and joins again by itself.
		var lost *kgo.ErrGroupSession
		if !errors.As(failed.Err, &lost) {
			must(failed.Err)
		}
	}
	found := []string{}
	fetches.EachRecord(func(record *kgo.Record) { found = append(found, string(record.Value)) })
	return found
}

// refuse ends the program by why it does not get in; what is no refusal is a failure like any other.
func refuse(err error) {
	var unknown *tls.CertificateVerificationError
	known := errors.Is(err, kerr.SaslAuthenticationFailed) || errors.As(err, &unknown)
	// What the library and crypto/tls have no names for: an answer to a token, and an alert.
	said := err.Error()
	if known || strings.Contains(said, "oauth response") || strings.Contains(said, "remote error: tls:") {
		fmt.Println(err)
		os.Exit(refused)
	}
	must(err)
}

func must(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%T: %v\n", err, err)
		os.Exit(1)
	}
}
