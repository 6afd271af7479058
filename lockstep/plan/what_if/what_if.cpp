#include "lockstep/plan/what_if/what_if.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::plan {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument("what if: " + what);
}

void check_above_zero(double value, const char* what) {
  if (!(std::isfinite(value) && value > 0)) refuse(std::string(what) + " is not above 0; give it");
}

void check_time(double value, const char* what) {
  if (!(std::isfinite(value) && value >= 0))
    refuse(std::string(what) + " is no time; give 0 or more");
}

Link& link_of(Machine& machine, LinkPlace place) {
  return place == LinkPlace::kInside ? machine.inside : machine.between;
}

}  // namespace

Machine with_link_share(Machine machine, LinkPlace place, double share) {
  check_above_zero(share, "the share of a link's bandwidth");
  link_of(machine, place).bandwidth *= share;
  return machine;
}

Machine with_link_bandwidth(Machine machine, LinkPlace place, double bytes_per_second) {
  check_above_zero(bytes_per_second, "a link's bandwidth");
  link_of(machine, place).bandwidth = bytes_per_second;
  return machine;
}

double computed_seconds(const TimeParts& time) {
  return time.matrices + time.attention + time.elementwise + time.recomputation + time.head +
         time.optimizer;
}

Estimate with_straggler(Estimate estimate, double factor) {
  if (!(std::isfinite(factor) && factor >= 1))
    refuse("a straggler's factor is below 1; give how many times as long it computes, such as 1.2");
  const double more = (factor - 1) * computed_seconds(estimate.time);
  const double before = estimate.step;
  estimate.time.late += more;
  estimate.step += more;
  const double ratio = estimate.step > 0 ? before / estimate.step : 1;
  estimate.tokens_per_second *= ratio;
  estimate.bubble *= ratio;
  estimate.exposed *= ratio;
  return estimate;
}

double job_mtbf(const Failures& failures, int64_t ranks, int ranks_per_host) {
  check_time(failures.rank, "the time between failures of a rank");
  check_time(failures.host, "the time between failures of a host");
  if (ranks < 1 || ranks_per_host < 1) refuse("a job of no ranks; give 1 or more");
  const double hosts = std::ceil(static_cast<double>(ranks) / static_cast<double>(ranks_per_host));
  double rate = 0;
  if (failures.rank > 0) rate += static_cast<double>(ranks) / failures.rank;
  if (failures.host > 0) rate += hosts / failures.host;
  return rate > 0 ? 1 / rate : 0;
}

double young_interval(double stall, double mtbf) {
  check_time(stall, "a checkpoint's stall");
  check_time(mtbf, "the time between failures");
  return std::sqrt(2 * stall * mtbf);
}

double daly_interval(double stall, double mtbf) {
  const double first = young_interval(stall, mtbf);
  if (stall >= 2 * mtbf) return mtbf;
  const double ratio = stall / (2 * mtbf);
  return first * (1 + std::sqrt(ratio) / 3 + ratio / 9) - stall;
}

Goodput goodput_with_checkpoints(double mtbf, const Recovery& recovery) {
  check_time(mtbf, "the time between failures");
  check_time(recovery.stall, "a checkpoint's stall");
  check_time(recovery.restart, "a restart");
  check_time(recovery.interval, "the time between checkpoints");
  Goodput goodput{.mtbf = mtbf, .interval = recovery.interval};
  if (mtbf == 0) {  // checkpoints that are asked for stop the training nevertheless
    if (recovery.interval == 0) return goodput;
    goodput.share = recovery.interval / (recovery.interval + recovery.stall);
    goodput.checkpoints = 1 - goodput.share;
    return goodput;
  }
  if (goodput.interval == 0) goodput.interval = daly_interval(recovery.stall, mtbf);
  goodput.restarts = std::min(1.0, recovery.restart / mtbf);
  const double runs = 1 - goodput.restarts;
  // Checkpoints that cost nothing are taken all the time, and nothing is lost.
  const double tried = (goodput.interval + recovery.stall) / mtbf;
  const double lasts = goodput.interval > 0 ? goodput.interval / mtbf / std::expm1(tried) : 1;
  goodput.share = runs * lasts;
  goodput.checkpoints =
      goodput.interval > 0 ? goodput.share * recovery.stall / goodput.interval : 0;
  goodput.lost = std::max(0.0, runs - goodput.share - goodput.checkpoints);
  return goodput;
}

Goodput goodput_in_place(double mtbf, double step, double restart) {
  check_time(mtbf, "the time between failures");
  check_time(restart, "a restart");
  check_above_zero(step, "a step");
  Goodput goodput{.mtbf = mtbf};
  if (mtbf == 0) return goodput;
  goodput.restarts = std::min(1.0, restart / mtbf);
  const double runs = 1 - goodput.restarts;
  goodput.share = runs * std::exp(-step / mtbf);
  goodput.lost = runs - goodput.share;
  return goodput;
}

Cost cost_of(double tokens, double tokens_per_second, int64_t ranks, double goodput,
             double price_of_rank_hour) {
  check_above_zero(tokens, "the number of tokens");
  check_above_zero(tokens_per_second, "the speed of a rank");
  check_above_zero(goodput, "the share of the time that lasts");
  if (ranks < 1) refuse("a job of no ranks; give 1 or more");
  if (!(std::isfinite(price_of_rank_hour) && price_of_rank_hour >= 0))
    refuse("the price of an hour is below 0 or not finite; give 0 or more");
  Cost cost;
  cost.seconds = tokens / (tokens_per_second * static_cast<double>(ranks) * goodput);
  cost.rank_hours = cost.seconds / 3600 * static_cast<double>(ranks);
  cost.price = cost.rank_hours * price_of_rank_hour;
  return cost;
}

}  // namespace lockstep::inline v0::plan
