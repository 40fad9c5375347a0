// With the client that `openapi-generator -g go` makes. Arguments: the server's URL, a name of its own.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	fasti "example.org/me/fasti"
)

func must(holds bool, what ...any) {
	if !holds {
		panic(fmt.Sprint(what...))
	}
}

func delay(text string) *fasti.Delay { return &fasti.Delay{String: &text} }

func main() {
	url, name := os.Args[1], os.Args[2]
	configuration := fasti.NewConfiguration()
	configuration.Servers = fasti.ServerConfigurations{{URL: url}}
	client := fasti.NewAPIClient(configuration)
	messages, groups, ctx := client.MessagesAPI, client.GroupsAPI, context.Background()

	at := time.Now().Truncate(time.Second).Add(time.Hour)
	wanted := fasti.NewMessageRequest(map[string]int{"n": 17})
	wanted.SetTopic(name + "/a")
	wanted.SetDeliverAt(fasti.When{TimeTime: &at})
	posted, _, err := messages.PostMessages(ctx).MessageRequest(*wanted).Execute()
	must(err == nil, err)
	must(posted.GetDeliverAt().Equal(at), posted)

	shown, _, err := messages.GetMessagesId(ctx, posted.Id).Execute()
	must(err == nil && shown.State == "pending" && shown.Topic == name+"/a", shown, err)

	moved, _, err := messages.PatchMessagesId(ctx, posted.Id).Move(fasti.Move{DeliverIn: delay("2h")}).Execute()
	must(err == nil && moved.DeliverAt.After(at), moved, err)

	_, err = messages.DeleteMessagesId(ctx, posted.Id).Execute()
	must(err == nil, err)
	shown, _, err = messages.GetMessagesId(ctx, posted.Id).Execute()
	must(err == nil && shown.State == "cancelled", shown, err)

	items := []fasti.BatchItem{}
	for _, text := range []string{"1h", "999999d"} {
		item := fasti.NewBatchItem("x")
		item.SetTopic(name + "/b")
		item.SetDeliverIn(*delay(text))
		items = append(items, *item)
	}
	each, _, err := messages.PostMessagesBatch(ctx).Each(true).BatchItem(items).Execute()
	must(err == nil && len(each.Results) == 2, each, err)
	must(each.Results[0].Id != nil && each.Results[0].Problem == nil, each)
	problem := each.Results[1].Problem
	must(problem.GetStatus() == 422 && problem.Errors[0].Field == "deliver_in", problem)

	terms := fasti.NewGroupRequest(name + "/jobs")
	terms.SetAckTimeout(*delay("30s"))
	_, _, err = groups.PutGroupsGroup(ctx, name).GroupRequest(*terms).Execute()
	must(err == nil, err)
	now := fasti.NewMessageRequest("now")
	now.SetTopic(name + "/jobs")
	now.SetDeliverIn(*delay("0s"))
	_, _, err = messages.PostMessages(ctx).MessageRequest(*now).Execute()
	must(err == nil, err)
	asked := fasti.NewLeaseMessages(1)
	asked.SetWait(*delay("20s"))
	leased, _, err := groups.PostGroupsGroupMessagesLease(ctx, name).LeaseMessages(*asked).Execute()
	must(err == nil && len(leased.Messages) == 1, leased, err)
	one := leased.Messages[0]
	must(one.Payload == "now" && one.Attempt == 1, one)
	acks := fasti.NewAckMessages([]string{one.LeaseId})
	acked, _, err := groups.PostGroupsGroupMessagesAck(ctx, name).AckMessages(*acks).Execute()
	must(err == nil && acked.Acked == 1 && len(acked.Gone) == 0, acked, err)

	_, response, err := messages.GetMessagesId(ctx, "ffffffffffffffffffffffffffffffff").Execute()
	must(err != nil && response.StatusCode == 404, response)
	fmt.Println("all done")
}
