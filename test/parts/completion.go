package parts

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
)

// completion reads a request for a chat completion, and adds to the query the answer of a language
// model. Each four bytes of the request cost a token, and the answer costs half of max_tokens, or
// of 200 tokens. Stream chooses server-sent events. A query that has tokens or stream already keeps
// both.
func completion(body io.Reader, query url.Values) error {
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var asked struct {
		Stream    bool `json:"stream"`
		MaxTokens int  `json:"max_tokens"`
	}
	if err := json.Unmarshal(text, &asked); err != nil {
		return fmt.Errorf("the body is no request for a completion: %w", err)
	}
	if asked.MaxTokens < 0 {
		return fmt.Errorf("max_tokens is %d, and not a positive number", asked.MaxTokens)
	}
	if asked.MaxTokens == 0 {
		asked.MaxTokens = 200
	}
	answer := asked.MaxTokens / 2
	if !query.Has("tokens") {
		query.Set("tokens", strconv.Itoa((len(text)+3)/4+answer))
	}
	if asked.Stream && !query.Has("stream") {
		query.Set("stream", strconv.Itoa(min(answer, 20)))
	}
	return nil
}
