// Writes numbered records with segmentio's kafka-go and reads them back from the partition itself, without a group.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
)

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Topic: topic, RequiredAcks: kafka.RequireAll,
		Compression: kafka.Zstd, BatchTimeout: 10 * time.Millisecond,
	}
	messages := make([]kafka.Message, count)
	for i := range messages {
		messages[i] = kafka.Message{Key: []byte("go"), Value: []byte(strconv.Itoa(i))}
	}
	must(writer.WriteMessages(ctx, messages...))
	must(writer.Close())

	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{bootstrap}, Topic: topic, Partition: 0, MaxBytes: 1 << 20})
	for next := 0; next < count; next++ {
		message, err := reader.ReadMessage(ctx)
		must(err)
		if string(message.Value) != strconv.Itoa(next) {
			must(fmt.Errorf("offset %d holds %q, expected %d", message.Offset, message.Value, next))
		}
	}
	must(reader.Close())
	fmt.Println("ok", count)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
