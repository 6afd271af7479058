#include "lockstep/launch/spare_schedule.h"

#include <algorithm>

#include "lockstep/launch/supervisor.h"

namespace lockstep::inline v0::launch {

SpareSchedule::SpareSchedule(int count, Time now) : count_(count), next_(now + kPause) {}

bool SpareSchedule::take_start(Time now, int needed) {
  const auto at = next_time(needed);
  if (!at || now < *at) return false;
  ++there_;
  next_ = now + kPause;
  return true;
}

std::optional<SpareSchedule::Time> SpareSchedule::next_time(int needed) const {
  if (given_up() || there_ >= std::min(count_, needed)) return std::nullopt;
  return next_;
}

void SpareSchedule::on_rank_started(Time now) {
  next_ = std::max(next_, now + kPause);
}

void SpareSchedule::on_taken(Time now) {
  --there_;
  losses_ = 0;
  on_rank_started(now);
}

void SpareSchedule::on_lost(Time now, std::optional<Time> waiting_since) {
  --there_;
  if (waiting_since && now - *waiting_since >= kSteady) losses_ = 0;
  ++losses_;
  next_ = std::max(next_, now + restart_pause(losses_));
}

}  // namespace lockstep::inline v0::launch
