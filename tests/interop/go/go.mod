module tidelog.example/interop

go 1.23

require (
	github.com/IBM/sarama v1.46.3
	github.com/segmentio/kafka-go v0.4.49
	github.com/twmb/franz-go v1.20.4
)
