// Writes numbered records with sarama and reads them back from the partition itself, without a group.
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/IBM/sarama"
)

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	must(err)

	config := sarama.NewConfig()
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Compression = sarama.CompressionSnappy
	config.Producer.Partitioner = sarama.NewManualPartitioner
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	must(err)
	messages := make([]*sarama.ProducerMessage, count)
	for i := range messages {
		messages[i] = &sarama.ProducerMessage{
			Topic: topic, Partition: 0,
			Key: sarama.StringEncoder("go"), Value: sarama.StringEncoder(strconv.Itoa(i)),
		}
	}
	must(producer.SendMessages(messages))
	must(producer.Close())

	consumer, err := sarama.NewConsumer([]string{bootstrap}, config)
	must(err)
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	must(err)
	for next := 0; next < count; next++ {
		message := <-partition.Messages()
		if string(message.Value) != strconv.Itoa(next) {
			must(fmt.Errorf("offset %d holds %q, expected %d", message.Offset, message.Value, next))
		}
	}
	must(consumer.Close())
	fmt.Println("ok", count)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
