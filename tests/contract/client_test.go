package duepost

// A client of openapi-generator's `go`, into whose package this file is copied. Every answer of the service reaches it
// with one more field in each object: answers may grow, and clients made today must read them.

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

const oneMore = "one_more_field"

// grown gives every object of a JSON value one more field.
func grown(value interface{}) interface{} {
	switch value := value.(type) {
	case map[string]interface{}:
		for name, field := range value {
			if name != "payload" {
				value[name] = grown(field)
			}
		}
		value[oneMore] = "of a later version"
	case []interface{}:
		for n := range value {
			value[n] = grown(value[n])
		}
	}
	return value
}

type growing struct{ answers int }

func (g *growing) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil || !strings.Contains(response.Header.Get("content-type"), "json") {
		return response, err
	}
	defer response.Body.Close()
	var value interface{}
	if err := json.NewDecoder(response.Body).Decode(&value); err != nil {
		return nil, err
	}
	text, err := json.Marshal(grown(value))
	if err != nil {
		return nil, err
	}
	g.answers++
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return response, nil
}

func TestAClientOfTodayReadsTheAnswersOfTomorrow(t *testing.T) {
	const queue = "go"
	transport := &growing{}
	configuration := NewConfiguration()
	configuration.Servers = ServerConfigurations{{URL: os.Getenv("DUEPOST_URL")}}
	configuration.HTTPClient = &http.Client{Transport: transport}
	api := NewAPIClient(configuration)
	ctx := context.WithValue(context.Background(), ContextAccessToken, os.Getenv("DUEPOST_KEY"))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	limits := NewQueuePut()
	limits.SetMaxInFlight(7)
	set, _, err := api.QueuesAPI.PutQueue(ctx, queue).QueuePut(*limits).Execute()
	must(err)
	backoff := set.Settings.Retry.GetBackoff()
	if set.Settings.GetMaxInFlight() != 7 || backoff.ExponentialBackoff == nil {
		t.Fatalf("settings: %+v", set.Settings)
	}
	if set.AdditionalProperties[oneMore] == nil {
		t.Fatal("the answer had no field more than today")
	}

	later := NewTaskCreate(map[string]interface{}{"order_id": 1042})
	later.SetId("later")
	later.SetDelay("1h")
	scheduled, response, err := api.TasksAPI.CreateTask(ctx, queue).TaskCreate(*later).Execute()
	must(err)
	if response.StatusCode != 201 || scheduled.State != "scheduled" {
		t.Fatalf("%d: %+v", response.StatusCode, scheduled)
	}
	move := NewTaskPatch()
	move.SetDelay("2h")
	moved, _, err := api.TasksAPI.PatchTask(ctx, queue, "later").TaskPatch(*move).Execute()
	must(err)
	if !moved.RunAt.After(scheduled.RunAt) {
		t.Fatalf("moved from %v to %v", scheduled.RunAt, moved.RunAt)
	}

	// This generator writes a body that is left out as `null`, which is none of ours: say `{}`.
	paused, _, err := api.QueuesAPI.PauseQueue(ctx, queue).QueuePause(*NewQueuePause()).Execute()
	must(err)
	resumed, _, err := api.QueuesAPI.ResumeQueue(ctx, queue).Execute()
	must(err)
	if !paused.Paused || resumed.Paused {
		t.Fatalf("paused %v, resumed %v", paused.Paused, !resumed.Paused)
	}

	now := NewTaskCreate([]interface{}{1.5, nil})
	now.SetId("now")
	_, _, err = api.TasksAPI.CreateTask(ctx, queue).TaskCreate(*now).Execute()
	must(err)
	claim := NewTaskClaim()
	claim.SetWait("5s")
	claimed, _, err := api.ConsumersAPI.ClaimTasks(ctx, queue).TaskClaim(*claim).Execute()
	must(err)
	if len(claimed.Tasks) != 1 || claimed.Tasks[0].Id != "now" {
		t.Fatalf("claimed: %+v", claimed)
	}
	token := NewTaskAck(claimed.Tasks[0].Lease.Token)
	acked, _, err := api.ConsumersAPI.AckTask(ctx, queue, "now").TaskAck(*token).Execute()
	must(err)
	whole, _, err := api.TasksAPI.GetTask(ctx, queue, "now").Execute()
	must(err)
	if acked.State != "completed" || len(whole.Attempts) != 1 || whole.Attempts[0].Outcome != "delivered" {
		t.Fatalf("acked: %+v", whole)
	}
	cancelled, _, err := api.TasksAPI.CancelTask(ctx, queue, "later").Execute()
	must(err)
	page, _, err := api.TasksAPI.ListTasks(ctx, queue).State("cancelled").Execute()
	must(err)
	if cancelled.State != "cancelled" || len(page.Items) != 1 {
		t.Fatalf("cancelled: %+v", page)
	}

	_, _, err = api.TasksAPI.GetTask(ctx, queue, "none").Execute()
	refused, _ := err.(*GenericOpenAPIError)
	if refused == nil {
		t.Fatalf("a task that is not there: %v", err)
	}
	if problem, is := refused.Model().(Problem); !is || problem.Type != "/problems/task-not-found" {
		t.Fatalf("the problem: %+v", refused.Model())
	}
	t.Logf("%d answers with one more field in each object were read", transport.answers)
}
