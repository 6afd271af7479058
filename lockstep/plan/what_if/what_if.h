// The estimate of a job where a link is slower, a rank is slower, or ranks fail; and the cost of a
// training. Pure.
//
//   const double mtbf = plan::job_mtbf({.rank = 50'000 * 3600.0}, 16384, 8);
//   plan::goodput_with_checkpoints(mtbf, {.stall = 10, .restart = 300}).share;  // of the time
//
// Times are in seconds, shares are of all the time that the job has its ranks.
#pragma once

#include <cstdint>

#include "lockstep/core/export.h"
#include "lockstep/plan/estimate/estimate.h"

namespace lockstep::inline v0::plan {

enum class LinkPlace : uint8_t { kInside, kBetween };  // of a host; between hosts

// The machine whose links have `share` of their bandwidth, such as 0.5; or so many bytes a second.
// Throws InvalidArgument for a number that is not above 0.
LOCKSTEP_API Machine with_link_share(Machine machine, LinkPlace place, double share);
LOCKSTEP_API Machine with_link_bandwidth(Machine machine, LinkPlace place, double bytes_per_second);

// The step where one rank computes `factor` times as long as the others (1.2: a fifth longer), on
// the stage that has most to do: all wait for it, micro-batch by micro-batch, so the step grows by
// what that rank computes longer. It is in time.late. Throws InvalidArgument for a factor below 1.
LOCKSTEP_API Estimate with_straggler(Estimate estimate, double factor);
// The time that a rank computes in a step, in seconds: all but communication and waiting.
LOCKSTEP_API double computed_seconds(const TimeParts& time);

// Mean times between failures; 0: it does not fail.
struct Failures {
  double rank = 0;  // of one rank, such as a GPU
  double host = 0;  // of one host, in addition: what takes all of its ranks
};
// Mean time between failures of the job. Failures are independent: all the rates add up. 0: nothing
// fails. Throws InvalidArgument for a time that is negative or not finite, and for counts below 1.
LOCKSTEP_API double job_mtbf(const Failures& failures, int64_t ranks, int ranks_per_host);

// The time of training between two checkpoints that loses least, of checkpoints that stop the
// training for `stall`: sqrt(2 stall mtbf) (Young, CACM 17(9), 1974), and with two terms more
// (Daly, FGCS 22(3), 2006), which holds where the stall is not small against mtbf.
LOCKSTEP_API double young_interval(double stall, double mtbf);
LOCKSTEP_API double daly_interval(double stall, double mtbf);

// How a job saves and restarts.
struct Recovery {
  double stall = 0;     // that a checkpoint stops the training for
  double restart = 0;   // from a failure until the first new step
  double interval = 0;  // of training between checkpoints; 0: daly_interval()
};

// Where the time goes; the four shares are 1 together.
struct Goodput {
  double share = 1;        // training that lasts
  double checkpoints = 0;  // stopped by checkpoints
  double lost = 0;         // training that is done again
  double restarts = 0;
  double mtbf = 0;
  double interval = 0;  // between checkpoints; 0: none are needed
};

// Failures come at random, one each `mtbf` of all the time (what published figures count), cost
// `restart` each, and what was trained since the last checkpoint:
//   share = (1 - restart / mtbf) * interval / (mtbf (e^((interval + stall) / mtbf) - 1))
// To first order 1 - sqrt(2 stall / mtbf) - restart / mtbf. Where a restart takes longer than the
// next failure, the share is 0. mtbf 0: nothing fails.
LOCKSTEP_API Goodput goodput_with_checkpoints(double mtbf, const Recovery& recovery);
// The same where the other ranks go on in place (`lockstep run --on-failure replace`): a failure
// costs the step that it falls into, and `restart`.
//   share = (1 - restart / mtbf) * e^(-step / mtbf)
LOCKSTEP_API Goodput goodput_in_place(double mtbf, double step, double restart);

// The cost of training on so many tokens.
struct Cost {
  double seconds = 0;  // with what failures cost
  double rank_hours = 0;
  double price = 0;  // in the currency of the price an hour
};
// `tokens_per_second` of one rank, as Estimate has it. Throws InvalidArgument for numbers that are
// not above 0, and a price below 0.
LOCKSTEP_API Cost cost_of(double tokens, double tokens_per_second, int64_t ranks, double goodput,
                          double price_of_rank_hour);

}  // namespace lockstep::inline v0::plan
