package parts

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
)

// A Usage is the tokens of one answer of a language model.
type Usage struct {
	Input     int // tokens of the request, with these three:
	Cached    int // read from a cache
	Written   int // written to a cache
	Tools     int // results of tools, which only Gemini counts apart
	Output    int // tokens of the answer, with:
	Reasoning int // tokens that the client does not see
}

// Query is the part of a query that asks a Backend for an answer with this usage.
func (u Usage) Query() string {
	return fmt.Sprintf("input=%d&cached=%d&written=%d&tools=%d&output=%d&reasoning=%d",
		u.Input, u.Cached, u.Written, u.Tools, u.Output, u.Reasoning)
}

// cached is OpenAI's details of the tokens of a request.
func (u Usage) cached() object {
	details := object{"cached_tokens": u.Cached}
	if u.Written > 0 {
		details["cache_write_tokens"] = u.Written
	}
	return details
}

// A prompt is a request for an answer of a language model, of any of the four APIs.
type prompt struct {
	Model         string `json:"model"`
	Stream        bool   `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"` // only chat completions
	MaxTokens           int `json:"max_tokens"`            // chat completions, messages
	MaxCompletionTokens int `json:"max_completion_tokens"` // chat completions
	MaxOutputTokens     int `json:"max_output_tokens"`     // responses
	GenerationConfig    struct {
		MaxOutputTokens int `json:"maxOutputTokens"`
	} `json:"generationConfig"` // generateContent
}

// An api writes the answers of one API of language models: the content type and the pieces of the
// body. The text has so many words, and the API reports the usage in its own way.
type api func(p prompt, words int, usage Usage, query url.Values) (kind string, pieces []string)

// apiOf returns the API of a path, or nil.
func apiOf(path string) api {
	for _, known := range []struct {
		suffix string
		api    api
	}{
		{"/chat/completions", chatCompletion},
		{"/responses", response},
		{"/messages", message},
		{":generateContent", content},
		{":streamGenerateContent", contents},
	} {
		if strings.HasSuffix(path, known.suffix) {
			return known.api
		}
	}
	return nil
}

// modelAnswer reads a request for an answer of a language model, and returns the answer. The query
// may ask for each number of Usage by its name. Without, each four bytes of the request cost a
// token, and the answer costs half of the client's maximum, or of 200 tokens.
func modelAnswer(answer api, body io.Reader, query url.Values) (kind string, pieces []string, err error) {
	text, err := io.ReadAll(body)
	if err != nil {
		return "", nil, err
	}
	var p prompt
	if err := json.Unmarshal(text, &p); err != nil {
		return "", nil, fmt.Errorf("the body is no request to a language model: %w", err)
	}
	most := max(p.MaxTokens, p.MaxCompletionTokens, p.MaxOutputTokens, p.GenerationConfig.MaxOutputTokens)
	if most <= 0 {
		most = 200
	}
	usage := Usage{Input: (len(text) + 3) / 4, Output: most / 2}
	err = numbers(query, map[string]*int{
		"input": &usage.Input, "cached": &usage.Cached, "written": &usage.Written, "tools": &usage.Tools,
		"output": &usage.Output, "reasoning": &usage.Reasoning,
	})
	kind, pieces = answer(p, max(1, min(usage.Output-usage.Reasoning, 20)), usage, query)
	return kind, pieces, err
}

// object is JSON.
type object = map[string]any

// encode writes JSON.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error() // never: all values are numbers, texts and lists
	}
	return string(text)
}

// whole is an answer of JSON, in two pieces.
func whole(v any) (kind string, pieces []string) {
	text := encode(v) + "\n"
	return "application/json", []string{text[:1], text[1:]}
}

// event is a server-sent event with a name.
func event(name string, v object) string {
	v["type"] = name
	return "event: " + name + "\ndata: " + encode(v) + "\n\n"
}

// sentence returns so many words.
func sentence(words int) string { return strings.TrimSpace(strings.Repeat("word ", words)) }

// chatCompletion is OpenAI's POST /v1/chat/completions. A stream ends with the usage only if the
// request has stream_options.include_usage.
func chatCompletion(p prompt, words int, u Usage, _ url.Values) (kind string, pieces []string) {
	usage := object{
		"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Input + u.Output,
		"prompt_tokens_details":     u.cached(),
		"completion_tokens_details": object{"reasoning_tokens": u.Reasoning},
	}
	if !p.Stream {
		return whole(object{
			"id": "chatcmpl-1", "object": "chat.completion", "model": p.Model, "usage": usage,
			"choices": []object{{"index": 0, "finish_reason": "stop", "message": object{"role": "assistant", "content": sentence(words)}}},
		})
	}
	chunk := func(choices []object, usage any) string {
		c := object{"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": p.Model, "choices": choices}
		if p.StreamOptions.IncludeUsage {
			c["usage"] = usage
		}
		return "data: " + encode(c) + "\n\n"
	}
	for range words {
		pieces = append(pieces, chunk([]object{{"index": 0, "delta": object{"content": "word "}}}, nil))
	}
	pieces = append(pieces, chunk([]object{{"index": 0, "delta": object{}, "finish_reason": "stop"}}, nil))
	if p.StreamOptions.IncludeUsage {
		pieces = append(pieces, chunk([]object{}, usage))
	}
	return "text/event-stream", append(pieces, "data: [DONE]\n\n")
}

// response is OpenAI's POST /v1/responses.
func response(p prompt, words int, u Usage, _ url.Values) (kind string, pieces []string) {
	complete := object{
		"id": "resp-1", "object": "response", "status": "completed", "model": p.Model,
		"output": []object{{"type": "message", "role": "assistant", "content": []object{{"type": "output_text", "text": sentence(words)}}}},
		"usage": object{
			"input_tokens": u.Input, "output_tokens": u.Output, "total_tokens": u.Input + u.Output,
			"input_tokens_details":  u.cached(),
			"output_tokens_details": object{"reasoning_tokens": u.Reasoning},
		},
	}
	if !p.Stream {
		return whole(complete)
	}
	begun := object{"id": "resp-1", "object": "response", "status": "in_progress", "model": p.Model, "usage": nil}
	pieces = append(pieces, event("response.created", object{"response": begun}))
	for range words {
		pieces = append(pieces, event("response.output_text.delta", object{"delta": "word "}))
	}
	return "text/event-stream", append(pieces, event("response.completed", object{"response": complete}))
}

// message is Anthropic's POST /v1/messages. There input_tokens has no tokens of the cache.
func message(p prompt, words int, u Usage, _ url.Values) (kind string, pieces []string) {
	usage := object{
		"input_tokens": u.Input - u.Cached - u.Written, "cache_read_input_tokens": u.Cached, "cache_creation_input_tokens": u.Written,
		"output_tokens": u.Output,
	}
	answer := object{"id": "msg-1", "type": "message", "role": "assistant", "model": p.Model, "usage": usage}
	if !p.Stream {
		answer["content"], answer["stop_reason"] = []object{{"type": "text", "text": sentence(words)}}, "end_turn"
		return whole(answer)
	}
	usage["output_tokens"] = 1 // so far
	answer["content"] = []object{}
	pieces = []string{
		event("message_start", object{"message": answer}),
		event("content_block_start", object{"index": 0, "content_block": object{"type": "text", "text": ""}}),
		event("ping", object{}),
	}
	for range words {
		pieces = append(pieces, event("content_block_delta", object{"index": 0, "delta": object{"type": "text_delta", "text": "word "}}))
	}
	return "text/event-stream", append(pieces,
		event("content_block_stop", object{"index": 0}),
		event("message_delta", object{"delta": object{"stop_reason": "end_turn"}, "usage": object{"output_tokens": u.Output}}),
		event("message_stop", object{}),
	)
}

// chunkOf is a GenerateContentResponse with so much of the answer's usage.
func chunkOf(text string, u Usage) object {
	usage := object{
		"promptTokenCount": u.Input - u.Tools, "candidatesTokenCount": u.Output - u.Reasoning, "totalTokenCount": u.Input + u.Output,
	}
	for name, n := range map[string]int{
		"cachedContentTokenCount": u.Cached, "toolUsePromptTokenCount": u.Tools, "thoughtsTokenCount": u.Reasoning,
	} {
		if n > 0 {
			usage[name] = n
		}
	}
	return object{
		"modelVersion": "gemini", "usageMetadata": usage,
		"candidates": []object{{"index": 0, "content": object{"role": "model", "parts": []object{{"text": text}}}}},
	}
}

// content is Gemini's POST /v1beta/models/NAME:generateContent. There promptTokenCount
// has no results of tools, and candidatesTokenCount has no reasoning.
func content(_ prompt, words int, u Usage, _ url.Values) (kind string, pieces []string) {
	return whole(chunkOf(sentence(words), u))
}

// contents is Gemini's POST /v1beta/models/NAME:streamGenerateContent: events with alt=sse, and
// else one list of JSON. Each chunk has the usage so far.
func contents(_ prompt, words int, u Usage, query url.Values) (kind string, pieces []string) {
	var chunks []object
	for i := range words {
		far := u
		far.Output = u.Reasoning + (u.Output-u.Reasoning)*(i+1)/words
		chunks = append(chunks, chunkOf("word ", far))
	}
	if query.Get("alt") != "sse" {
		return whole(chunks)
	}
	for _, chunk := range chunks {
		pieces = append(pieces, "data: "+encode(chunk)+"\n\n")
	}
	return "text/event-stream", pieces
}
