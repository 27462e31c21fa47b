// Writes records and reads them back as a member of a group: TOPIC VALUE..., with the login as JSON on standard input.
//
// Without an authority it neither logs in nor asks for TLS. It prints the values as a JSON list. Where it is not let in, or does not believe the server, it prints why and ends
// with status 3.
package main

import (
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
	most    = 60 * time.Second
)

type login struct {
	Address, Mechanism, Authority, Name, Password, Token, Certificate string
}

func main() {
	var given login
	must(json.NewDecoder(os.Stdin).Decode(&given))
	topic, values := os.Args[1], os.Args[2:]
	options := given.options()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	write(ctx, options, topic, values)
	found := read(ctx, options, topic, len(values))
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
	reading := []kgo.Opt{
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	client, err := kgo.NewClient(append(options, reading...)...)
	must(err)
	defer client.Close()
	found := []string{}
	for len(found) < count {
		fetches := client.PollFetches(ctx)
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) { found = append(found, string(record.Value)) })
	}
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
