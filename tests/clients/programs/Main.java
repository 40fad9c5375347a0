// With the client that `openapi-generator -g java` makes. Arguments: the server's URL, a name of its own.
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Map;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.GroupsApi;
import org.openapitools.client.api.MessagesApi;
import org.openapitools.client.model.*;

public class Main {
  static void must(boolean holds, Object what) {
    if (!holds) throw new AssertionError(String.valueOf(what));
  }

  static MessagesApi.APIPostMessagesRequest posting(MessageRequest message) {
    return MessagesApi.APIPostMessagesRequest.newBuilder().messageRequest(message).build();
  }

  static MessagesApi.APIGetMessagesIdRequest of(String id) {
    return MessagesApi.APIGetMessagesIdRequest.newBuilder().id(id).build();
  }

  public static void main(String[] arguments) throws Exception {
    String name = arguments[1];
    ApiClient client = new ApiClient();
    client.updateBaseUri(arguments[0]);
    MessagesApi messages = new MessagesApi(client);
    GroupsApi groups = new GroupsApi(client);

    OffsetDateTime at = OffsetDateTime.now(ZoneOffset.UTC).truncatedTo(ChronoUnit.SECONDS).plusHours(1);
    MessageRequest wanted =
        new MessageRequest().topic(name + "/a").payload(Map.of("n", 17)).deliverAt(new When(at));
    Posted posted = messages.postMessages(posting(wanted));
    must(posted.getDeliverAt().isEqual(at), posted);

    MessageShown shown = messages.getMessagesId(of(posted.getId()));
    must(shown.getState().getValue().equals("pending") && shown.getTopic().equals(name + "/a"), shown);

    Move later = new Move().deliverIn(new Delay("2h"));
    Scheduled moved =
        messages.patchMessagesId(
            MessagesApi.APIPatchMessagesIdRequest.newBuilder().id(posted.getId()).move(later).build());
    must(moved.getDeliverAt().isAfter(at), moved);

    messages.deleteMessagesId(
        MessagesApi.APIDeleteMessagesIdRequest.newBuilder().id(posted.getId()).build());
    must(messages.getMessagesId(of(posted.getId())).getState().getValue().equals("cancelled"), posted);

    BatchItem first = new BatchItem().topic(name + "/b").payload("x").deliverIn(new Delay("1h"));
    BatchItem second = new BatchItem().topic(name + "/b").payload("x").deliverIn(new Delay("999999d"));
    List<Result> each =
        messages
            .postMessagesBatch(
                MessagesApi.APIPostMessagesBatchRequest.newBuilder()
                    .batchItem(List.of(first, second))
                    .each(true)
                    .build())
            .getResults();
    must(each.get(0).getId() != null && each.get(0).getProblem() == null, each);
    must(each.get(1).getProblem().getErrors().get(0).getField().equals("deliver_in"), each);

    GroupRequest terms = new GroupRequest().filter(name + "/jobs").ackTimeout(new Delay("30s"));
    groups.putGroupsGroup(
        GroupsApi.APIPutGroupsGroupRequest.newBuilder().group(name).groupRequest(terms).build());
    MessageRequest now =
        new MessageRequest().topic(name + "/jobs").payload("now").deliverIn(new Delay("0s"));
    messages.postMessages(posting(now));
    LeaseMessages asked = new LeaseMessages().max(1).wait(new Delay("20s"));
    LeasedMessage leased =
        groups
            .postGroupsGroupMessagesLease(
                GroupsApi.APIPostGroupsGroupMessagesLeaseRequest.newBuilder()
                    .group(name)
                    .leaseMessages(asked)
                    .build())
            .getMessages()
            .get(0);
    must(leased.getPayload().equals("now") && leased.getAttempt() == 1, leased);
    AckMessages acks = new AckMessages().leaseIds(List.of(leased.getLeaseId()));
    Acked acked =
        groups.postGroupsGroupMessagesAck(
            GroupsApi.APIPostGroupsGroupMessagesAckRequest.newBuilder()
                .group(name)
                .ackMessages(acks)
                .build());
    must(acked.getAcked() == 1 && acked.getGone().isEmpty(), acked);

    try {
      messages.getMessagesId(of("f".repeat(32)));
      throw new AssertionError("it is not there");
    } catch (ApiException error) {
      must(error.getCode() == 404, error);
    }
    System.out.println("all done");
  }
}
