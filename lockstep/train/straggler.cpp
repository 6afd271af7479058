#include "lockstep/train/straggler.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "lockstep/core/log.h"
#include "lockstep/core/quantile.h"
#include "lockstep/report/table.h"
#include "lockstep/trace/trace_file.h"

namespace lockstep::inline v0 {
namespace {

// What a rank says of itself.
struct Account {
  RankWindow window;
  int32_t node = 0;      // of its launcher
  int32_t restarts = 0;  // how often it was started again
  char host[64] = {};    // HOST_NAME_MAX, cut where it is as long
};
static_assert(sizeof(Account) == 88);

std::optional<int32_t> number(const EnvLookup& env, const std::string& name) {
  const auto text = env(name);
  const auto value = text ? parse_int(*text, 0, INT32_MAX) : std::nullopt;
  return value ? std::optional(static_cast<int32_t>(*value)) : std::nullopt;
}

// How often the launcher starts all ranks, or single ones, again; nothing where it does not say.
std::optional<int32_t> max_restarts_of(const EnvLookup& env) {
  return number(env, "TORCHELASTIC_MAX_RESTARTS");
}

}  // namespace

void check_eviction(double evict, int64_t max_restarts) {
  if (evict == 0) return;
  if (!(evict > 1) || !std::isfinite(evict))
    throw InvalidArgument("evict_stragglers is " + fixed(evict, 2) +
                          "; give how many times slower than the others a rank may be, above 1, or "
                          "0 for no eviction");
  if (max_restarts == 0)
    throw InvalidArgument(
        "evict_stragglers is " + fixed(evict, 2) +
        ", but no launcher starts a rank anew that ends; give lockstep run or lockstep train "
        "--on-failure replace --max-restarts N, or leave it at 0");
}

void check_eviction(double evict, const EnvLookup& env) {
  check_eviction(evict, max_restarts_of(env).value_or(0));
}

StragglerMonitor::Restarts StragglerMonitor::read_restarts(const EnvLookup& env) {
  const bool shared = env("LOCKSTEP_ON_FAILURE") == "replace";
  const char* count = shared ? "LOCKSTEP_RESTART_COUNT" : "TORCHELASTIC_RESTART_COUNT";
  return {.most = max_restarts_of(env),
          .shared = shared,
          .node = number(env, "GROUP_RANK").value_or(0),
          .count = number(env, count).value_or(0)};
}

StragglerMonitor::StragglerMonitor(Communicator comm, StragglerOptions options,
                                   const EnvLookup& env)
    : comm_(std::move(comm)), restarts_(read_restarts(env)), watch_(options) {}

std::string StragglerMonitor::host(int rank) const {
  return hosts_.empty() ? "" : hosts_[static_cast<size_t>(rank)];
}

void StragglerMonitor::compare(int64_t step) {
  Account mine{.window = {.seconds = steps_.empty() ? 0 : median(steps_),
                          .steps = static_cast<int64_t>(steps_.size())},
               .node = restarts_.node,
               .restarts = restarts_.count};
  steps_.clear();
  const std::string host = trace::host_name();
  host.copy(mine.host, sizeof mine.host);
  const at::Tensor row = at::zeros({1, sizeof(Account)}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), &mine, sizeof mine);
  const at::Tensor rows = comm_.all_gather(row);
  std::vector<RankWindow> windows;
  int64_t on_this_node = 0;
  hosts_.clear();
  for (int r = 0; r < comm_.size(); ++r) {
    Account account;
    std::memcpy(
        &account,
        static_cast<const char*>(rows.const_data_ptr()) + static_cast<size_t>(r) * sizeof account,
        sizeof account);
    windows.push_back(account.window);
    if (account.node == restarts_.node) on_this_node += account.restarts;
    hosts_.emplace_back(account.host, ::strnlen(account.host, sizeof account.host));
  }
  const StragglerWatch::Change change = watch_.add(windows, step);
  if (comm_.rank() == 0) {
    if (change.ends) log_warning(ends_text(*change.ends, this->host(change.ends->rank), step));
    if (change.begins) log_warning(begins_text(*change.begins, this->host(change.begins->rank)));
  }
  const int64_t used = restarts_.shared ? on_this_node : restarts_.count;
  const bool restarts_are_left = !restarts_.most || used < *restarts_.most;
  if (watch_.evicted() == comm_.rank() && restarts_are_left)
    throw Evicted(begins_text(*watch_.straggler(), host) +
                  "; it ends here, as evict_stragglers says, for the launcher to start it anew");
}

void StragglerCallback::on_step(const TrainerState& /*state*/, const StepResult& result) {
  monitor_.add_step(result.own);
}

void StragglerCallback::before_log(const TrainerState& state, LogEvent& event) {
  monitor_.compare(state.step);
  const auto straggler = monitor_.straggler();
  if (!straggler) return;
  event.figures.emplace_back("straggler_rank", straggler->rank);
  event.figures.emplace_back("straggler_late_s", straggler->late());
  event.figures.emplace_back("straggler_since_step", static_cast<double>(straggler->since_step));
  event.texts.emplace_back("straggler_host", monitor_.host(straggler->rank));
}

std::shared_ptr<TrainCallback> straggler_report(const Communicator& comm, double evict) {
  check_eviction(evict, process_env());
  return std::make_shared<StragglerCallback>(comm, StragglerOptions{.evict = evict});
}

}  // namespace lockstep::inline v0
