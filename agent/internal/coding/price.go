package coding

import "assay/agent"

// PricesVersion is the day on which the built-in prices were taken.
const PricesVersion = "2025-12-01"

// Price is what a million tokens cost, in USD. CacheRead is that of cached
// input.
type Price struct {
	Input     float64 `yaml:"input" json:"input" min:"0"`
	CacheRead float64 `yaml:"cacheRead" json:"cacheRead,omitempty" min:"0"`
	Output    float64 `yaml:"output" json:"output" min:"0"`
}

// prices are list prices by exact model name. A model that is not here has no
// known cost: a near name is no answer.
func prices() map[string]Price {
	gpt5 := Price{1.25, 0.125, 10}
	return map[string]Price{
		"gpt-5": gpt5, "gpt-5-codex": gpt5, "gpt-5.1": gpt5, "gpt-5.1-codex": gpt5,
		"gpt-5-mini": {0.25, 0.025, 2}, "gpt-5.1-codex-mini": {0.25, 0.025, 2}, "gpt-5-nano": {0.05, 0.005, 0.4},
		"gpt-4.1": {2, 0.5, 8}, "gpt-4.1-mini": {0.4, 0.1, 1.6}, "o3": {2, 0.5, 8}, "o4-mini": {1.1, 0.275, 4.4},
	}
}

// Cost adds the cost of a model to a usage that has none. own are the author's
// prices and win.
func Cost(u *agent.Usage, model string, own map[string]Price) {
	if u == nil || u.CostUSD != nil || u.InputTokens == nil || u.OutputTokens == nil {
		return
	}
	p, ok := own[model]
	if !ok {
		p, ok = prices()[model]
	}
	if !ok {
		return
	}
	usd := float64(*u.InputTokens)*p.Input + float64(*u.OutputTokens)*p.Output
	if u.CacheReadTokens != nil {
		usd += float64(*u.CacheReadTokens) * p.CacheRead
	}
	if u.CacheCreationTokens != nil {
		usd += float64(*u.CacheCreationTokens) * p.Input
	}
	usd /= 1e6
	u.CostUSD = &usd
}
