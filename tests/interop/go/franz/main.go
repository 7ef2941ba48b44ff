// Writes numbered records with franz-go and reads them back from the partition itself, without a group.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	producer, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()),
	)
	must(err)
	records := make([]*kgo.Record, count)
	for i := range records {
		records[i] = &kgo.Record{Partition: 0, Key: []byte("go"), Value: []byte(strconv.Itoa(i))}
	}
	must(producer.ProduceSync(ctx, records...).FirstErr())
	producer.Close()

	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
	)
	must(err)
	defer consumer.Close()
	next := 0
	for next < count {
		fetches := consumer.PollFetches(ctx)
		must(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			if string(record.Value) != strconv.Itoa(next) {
				must(fmt.Errorf("offset %d holds %q, expected %d", record.Offset, record.Value, next))
			}
			next++
		})
	}
	fmt.Println("ok", next)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
