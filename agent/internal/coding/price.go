package coding

import "assay/agent"

// Price is what a million tokens cost, in USD. CacheRead is that of cached
// input.
type Price struct {
	Input     float64 `yaml:"input" json:"input" min:"0"`
	CacheRead float64 `yaml:"cacheRead" json:"cacheRead,omitempty" min:"0"`
	Output    float64 `yaml:"output" json:"output" min:"0"`
}

// Cost adds the cost of a model to a usage that has none, by the author's prices.
// A model without a price has no known cost: no price is built in, because one
// that is out of date would be invented cost.
func Cost(u *agent.Usage, model string, prices map[string]Price) {
	if u == nil || u.CostUSD != nil || u.InputTokens == nil || u.OutputTokens == nil {
		return
	}
	p, ok := prices[model]
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
