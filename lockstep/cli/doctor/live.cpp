#include "lockstep/cli/doctor/live.h"

#include <algorithm>
#include <map>

#include "lockstep/report/table.h"

namespace lockstep::inline v0::cli {
namespace {

using trace::CallRecord;
using trace::TraceFile;

constexpr double kNoticeable = 0.001;  // seconds by which a rank comes after the last of the others
constexpr double kMuch = 0.2;

// A span in which all others were in a call that this rank had not made.
struct Lack {
  size_t rank = 0;  // its place among the traces
  uint64_t begun = 0, ended = 0;
};

double seconds_a_tick(const TraceFile& trace) {
  if (trace.now.ticks <= trace.entered.ticks) return 0;
  return 1e-9 * static_cast<double>(trace.now.unix_ns - trace.entered.unix_ns) /
         static_cast<double>(trace.now.ticks - trace.entered.ticks);
}

// The rank that came last to a call, while all others were there. `arrivals` has each rank's begin,
// or nothing.
std::optional<Lack> lack_of(const std::vector<std::optional<uint64_t>>& arrivals, uint64_t now) {
  Lack lack;
  uint64_t last = 0, last_but_one = 0;
  for (size_t r = 0; r < arrivals.size(); ++r) {
    const uint64_t came = arrivals[r].value_or(now);
    if (came > last) {
      last_but_one = last;
      last = came;
      lack.rank = r;
    } else {
      last_but_one = std::max(last_but_one, came);
    }
  }
  lack.begun = last_but_one;
  lack.ended = last;
  if (last_but_one >= last) return std::nullopt;
  return lack;
}

// Communicators of one rank never wait. The calls of those of several ranks are grouped by number.
std::vector<Lack> find_lacks(const std::vector<TraceFile>& ranks, uint64_t now) {
  using Arrivals = std::vector<std::optional<uint64_t>>;
  std::map<std::pair<uint32_t, uint64_t>, Arrivals> calls;
  // The first and the last recorded call of each communicator and rank.
  std::map<uint32_t, std::map<size_t, std::pair<uint64_t, uint64_t>>> kept;
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const CallRecord& call : ranks[r].calls) {
      if (call.moving != 0) continue;
      Arrivals& arrivals = calls[{call.group, call.sequence}];
      arrivals.resize(ranks.size());
      arrivals[r] = call.begun;
      const auto [it, fresh] = kept[call.group].emplace(r, std::pair(call.sequence, call.sequence));
      it->second.first = std::min(it->second.first, call.sequence);
      it->second.second = std::max(it->second.second, call.sequence);
    }
  }
  std::vector<Lack> lacks;
  for (const auto& [key, arrivals] : calls) {
    const auto& members = kept.at(key.first);
    if (members.size() < 2) continue;
    std::vector<std::optional<uint64_t>> those;
    std::vector<size_t> places;
    bool known = true;
    for (const auto& [r, range] : members) {
      // The record was overwritten, or lost when it was read.
      known &= arrivals[r].has_value() || key.second > range.second;
      those.push_back(arrivals[r]);
      places.push_back(r);
    }
    if (!known) continue;
    if (auto lack = lack_of(those, now)) {
      lack->rank = places[lack->rank];
      lacks.push_back(*lack);
    }
  }
  std::sort(lacks.begin(), lacks.end(),
            [](const Lack& a, const Lack& b) { return a.ended < b.ended; });
  return lacks;
}

// Time that several of them share counts once, because buckets are pending together.
uint64_t united(std::vector<Lack> lacks) {
  std::sort(lacks.begin(), lacks.end(),
            [](const Lack& a, const Lack& b) { return a.begun < b.begun; });
  uint64_t sum = 0, end = 0;
  for (const Lack& lack : lacks) {
    const uint64_t from = std::max(lack.begun, end);
    if (lack.ended > from) sum += lack.ended - from;
    end = std::max(end, lack.ended);
  }
  return sum;
}

LiveRow row_of(const TraceFile& trace, uint64_t now, double rate) {
  LiveRow row;
  row.rank = trace.rank;
  row.pid = trace.pid;
  row.state = "in init()";
  const CallRecord* last = nullptr;
  for (const CallRecord& call : trace.calls)
    if (call.moving == 0) last = &call;
  if (last == nullptr) return row;
  row.calls = last->sequence;
  row.state = last->ended == 0 ? "inside" : "returned";
  const uint64_t since = last->ended == 0 ? last->begun : last->ended;
  row.seconds = now > since ? static_cast<double>(now - since) * rate : 0;
  row.call = "#" + std::to_string(last->sequence) + " " + trace::describe(*last);
  return row;
}

}  // namespace

LiveReport look_live(const std::vector<TraceFile>& ranks, double seconds) {
  LiveReport report;
  if (ranks.empty()) return report;
  report.world_size = ranks.front().world_size;
  const uint64_t now = ranks.front().now.ticks;
  const double rate = seconds_a_tick(ranks.front());
  for (const TraceFile& trace : ranks) report.rows.push_back(row_of(trace, now, rate));
  if (rate <= 0) return report;
  const std::vector<Lack> all = find_lacks(ranks, now);
  uint64_t oldest = now;
  for (const TraceFile& trace : ranks)
    if (!trace.calls.empty()) oldest = std::min(oldest, trace.calls.front().begun);
  const auto window = static_cast<uint64_t>(seconds / rate);
  const uint64_t from = std::max(oldest, now > window ? now - window : 0);
  report.seconds = static_cast<double>(now - from) * rate;
  std::vector<std::vector<Lack>> of_rank(ranks.size());
  for (Lack lack : all) {
    if (lack.ended <= from) continue;
    lack.begun = std::max(lack.begun, from);
    of_rank[lack.rank].push_back(lack);
  }
  const auto noticed = [&](const Lack& lack) {
    return static_cast<double>(lack.ended - lack.begun) * rate >= kNoticeable;
  };
  for (size_t r = 0; r < ranks.size(); ++r) {
    LiveRow& row = report.rows[r];
    if (report.seconds > 0)
      row.awaited = static_cast<double>(united(of_rank[r])) * rate / report.seconds;
    std::vector<uint64_t> late;
    for (const Lack& lack : of_rank[r])
      if (noticed(lack)) late.push_back(lack.ended - lack.begun);
    if (late.empty()) continue;
    std::sort(late.begin(), late.end());
    row.late = static_cast<double>(late[late.size() / 2]) * rate;
  }
  size_t most = 0;
  for (size_t r = 1; r < ranks.size(); ++r)
    if (report.rows[r].awaited > report.rows[most].awaited) most = r;
  bool clear = report.rows[most].awaited >= kMuch;
  for (size_t r = 0; r < ranks.size(); ++r)
    clear &= r == most || 2 * report.rows[r].awaited <= report.rows[most].awaited;
  if (!clear) return report;
  report.straggler = ranks[most].rank;
  uint64_t since = now;
  for (auto lack = all.rbegin(); lack != all.rend(); ++lack) {
    if (!noticed(*lack)) continue;
    if (lack->rank != most) break;
    since = std::min(since, lack->begun);
  }
  report.since = static_cast<double>(now - since) * rate;
  return report;
}

std::string format_live(const LiveReport& report) {
  Table table({{"rank"},
               {"pid"},
               {"calls"},
               {"awaited"},
               {"late"},
               {"state", Align::kLeft},
               {"for"},
               {"call", Align::kLeft}});
  for (const LiveRow& row : report.rows)
    table.add({std::to_string(row.rank), std::to_string(row.pid), std::to_string(row.calls),
               percent(row.awaited, 0), row.late > 0 ? fixed(row.late, 3) + " s" : "", row.state,
               row.seconds ? fixed(*row.seconds, 3) + " s" : "", row.call});
  std::string text = std::to_string(report.rows.size()) + " of " +
                     std::to_string(report.world_size) + " ranks are on this host; the last " +
                     fixed(report.seconds, 1) + " s:\n" + table.str();
  if (report.straggler) {
    double awaited = 0, late = 0;
    for (const LiveRow& row : report.rows) {
      if (row.rank != *report.straggler) continue;
      awaited = row.awaited;
      late = row.late;
    }
    text += "rank " + std::to_string(*report.straggler) + " is late: the others wait for it " +
            percent(awaited, 0) + " of the time, " + fixed(late, 3) + " s a call, for " +
            duration_text(report.since) + " now\n";
  }
  return text;
}

}  // namespace lockstep::inline v0::cli
