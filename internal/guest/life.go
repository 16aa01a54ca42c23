package guest

import (
	"context"
	"time"

	"assay/internal/guest/wire"
)

// ExitExpired is the exit code of a guest that ended because its time was over.
const ExitExpired = wire.ExitExpired

// Live makes the guest end by itself, with every process that it can see, when
// limit is over, even where nobody is connected any more. A limit of 0 leaves its
// end as it is. If less than least were left then, it gets least. The reply is
// what is left by the guest's own account; limited is false for a guest that has
// no end of its own.
func (c *Client) Live(ctx context.Context, limit, least time.Duration) (left time.Duration, limited bool, err error) {
	var r wire.LiveReply
	if err := c.ask(ctx, wire.OpLive, &wire.LiveRequest{Limit: int64(limit), Least: int64(least)}, &r, &r.Result); err != nil {
		return 0, false, err
	}
	return time.Duration(r.Left), r.Limited, nil
}
