import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;

/** Runs every group of checks against the broker whose address is the only argument. */
public final class ClientSuite {
  public static void main(String[] arguments) throws Exception {
    String bootstrap = arguments[0];
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
      List<Checks> groups =
          List.of(
              new TopicChecks(bootstrap, admin),
              new ConfigChecks(bootstrap, admin),
              new RoundTripChecks(bootstrap, admin),
              new OffsetChecks(bootstrap, admin),
              new ProducerChecks(bootstrap, admin),
              new ConsumerChecks(bootstrap, admin));
      for (Checks group : groups) {
        group.run();
      }
    }
  }
}
