#include "lockstep/train/straggler.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "lockstep/core/log.h"
#include "lockstep/report/table.h"
#include "lockstep/trace/trace_file.h"

namespace lockstep {
namespace {

// What a rank says of itself.
struct Account {
  RankWindow window;
  char host[64] = {};  // HOST_NAME_MAX, cut where it is as long
};
static_assert(sizeof(Account) == 80);

double median_of(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// How often the launcher starts all ranks, or one, again; nothing where none is set.
std::optional<int64_t> number(const EnvLookup& env, const std::string& name) {
  const auto text = env(name);
  return text ? parse_int(*text, 0, INT32_MAX) : std::nullopt;
}

int64_t restarts_of(const EnvLookup& env) {
  return number(env, "TORCHELASTIC_MAX_RESTARTS").value_or(0);
}

}  // namespace

bool restarts_are_left(const EnvLookup& env) {
  if (restarts_of(env) == 0) return false;
  // How often other ranks were replaced, only the launcher knows.
  if (env("LOCKSTEP_ON_FAILURE") == "replace")
    return number(env, "LOCKSTEP_RESTART_COUNT").value_or(0) < restarts_of(env);
  return number(env, "TORCHELASTIC_RESTART_COUNT").value_or(0) < restarts_of(env);
}

void check_eviction(double evict, const EnvLookup& env) {
  if (evict == 0) return;
  if (!(evict > 1) || !std::isfinite(evict))
    throw InvalidArgument("evict_stragglers is " + fixed(evict, 2) +
                          "; give how many times slower than the others a rank may be, above 1, or "
                          "0 for no eviction");
  if (restarts_of(env) == 0)
    throw InvalidArgument(
        "evict_stragglers is " + fixed(evict, 2) +
        ", but no launcher starts a rank anew that ends; start the ranks with lockstep run "
        "--on-failure replace --max-restarts N, or leave it at 0");
}

StragglerMonitor::StragglerMonitor(Communicator comm, StragglerOptions options)
    : comm_(std::move(comm)), watch_(options) {}

std::string StragglerMonitor::host(int rank) const {
  return hosts_.empty() ? "" : hosts_[static_cast<size_t>(rank)];
}

void StragglerMonitor::compare(int64_t step) {
  Account mine{
      .window = {.seconds = median_of(steps_), .steps = static_cast<int64_t>(steps_.size())}};
  steps_.clear();
  const std::string host = trace::host_name();
  host.copy(mine.host, sizeof mine.host);
  const at::Tensor row = at::zeros({1, sizeof(Account)}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), &mine, sizeof mine);
  const at::Tensor rows = comm_.all_gather(row);
  std::vector<RankWindow> windows;
  hosts_.clear();
  for (int r = 0; r < comm_.size(); ++r) {
    Account account;
    std::memcpy(
        &account,
        static_cast<const char*>(rows.const_data_ptr()) + static_cast<size_t>(r) * sizeof account,
        sizeof account);
    windows.push_back(account.window);
    hosts_.emplace_back(account.host, ::strnlen(account.host, sizeof account.host));
  }
  const StragglerWatch::Change change = watch_.add(windows, step);
  if (comm_.rank() == 0) {
    if (change.ends) log_warning(ends_text(*change.ends, this->host(change.ends->rank), step));
    if (change.begins) log_warning(begins_text(*change.begins, this->host(change.begins->rank)));
  }
  if (watch_.evicted() == comm_.rank())
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
  // Where nobody would start it anew, the last attempt goes on, however slow.
  return std::make_shared<StragglerCallback>(
      comm, StragglerOptions{.evict = restarts_are_left(process_env()) ? evict : 0});
}

}  // namespace lockstep
