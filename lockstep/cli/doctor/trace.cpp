#include "lockstep/cli/doctor/trace.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/cli/usage.h"
#include "lockstep/core/errors.h"
#include "lockstep/report/table.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0::cli {
namespace {

using trace::CallRecord;
using trace::TraceFile;

constexpr size_t kLastRows = 5;

// A rank's calls on one communicator.
struct RankCalls {
  const TraceFile* trace = nullptr;
  std::vector<const CallRecord*> collectives;  // by sequence
  std::vector<const CallRecord*> moves;        // pending ones
};

using GroupCalls = std::map<int, RankCalls>;  // by rank

std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + rank_list(ranks);
}

std::string number(uint64_t sequence) {
  return "#" + std::to_string(sequence);
}

std::string calls_text(uint64_t count) {
  return std::to_string(count) + (count == 1 ? " call" : " calls");
}

std::optional<double> seconds_since(const TraceFile& trace, uint64_t ticks) {
  const int64_t then = trace.unix_ns(ticks);
  if (then == 0) return std::nullopt;
  return std::max(0.0, static_cast<double>(trace.now.unix_ns - then) * 1e-9);
}

std::string seconds_text(std::optional<double> seconds) {
  if (!seconds) return "?";
  return *seconds < 10 ? fixed(*seconds, 3) + " s" : duration_text(*seconds);
}

// Finds the files of a former job: they were written before others of this job had begun, or know
// another number of ranks than the newest.
std::vector<const TraceFile*> of_one_job(const std::vector<TraceFile>& traces,
                                         TraceReport& report) {
  const TraceFile* newest = &traces.front();
  int64_t begun = 0;
  for (const TraceFile& trace : traces)
    if (trace.now.unix_ns > newest->now.unix_ns) newest = &trace;
  for (const TraceFile& trace : traces)
    if (trace.world_size == newest->world_size) begun = std::max(begun, trace.entered.unix_ns);
  std::vector<const TraceFile*> used;
  for (const TraceFile& trace : traces) {
    if (trace.world_size == newest->world_size && trace.now.unix_ns >= begun) {
      used.push_back(&trace);
      report.ranks.push_back(trace.rank);
    } else {
      report.stale.push_back(trace.rank);
    }
  }
  report.world_size = newest->world_size;
  report.reason = newest->reason;
  report.unix_ns = newest->now.unix_ns;
  for (int rank = 0; rank < report.world_size; ++rank) {
    if (std::find(report.ranks.begin(), report.ranks.end(), rank) == report.ranks.end())
      report.missing.push_back(rank);
  }
  return used;
}

// Sorts groups in the order of their first calls.
std::vector<std::pair<uint32_t, GroupCalls>> by_group(const std::vector<const TraceFile*>& traces) {
  std::map<uint32_t, GroupCalls> groups;
  std::map<uint32_t, int64_t> first;
  for (const TraceFile* trace : traces) {
    for (const CallRecord& call : trace->calls) {
      if (trace::is_remote(call)) continue;
      RankCalls& calls = groups[call.group][trace->rank];
      calls.trace = trace;
      const int64_t begun = trace->unix_ns(call.begun);
      const auto [it, fresh] = first.emplace(call.group, begun);
      if (!fresh) it->second = std::min(it->second, begun);
      if (call.moving != 0) {
        if (call.ended == 0) calls.moves.push_back(&call);
        continue;
      }
      // The number was used before: this is a later communicator, of another init() of the program.
      auto& list = calls.collectives;
      if (!list.empty() && list.back()->sequence >= call.sequence) list.clear();
      list.push_back(&call);
    }
  }
  std::vector<std::pair<uint32_t, GroupCalls>> ordered(groups.begin(), groups.end());
  std::stable_sort(ordered.begin(), ordered.end(), [&](const auto& a, const auto& b) {
    return first.at(a.first) < first.at(b.first);
  });
  return ordered;
}

// The calls of one number, distinguished by `key`.
template <typename Key>
TracedRow row_of(uint64_t sequence, const std::vector<std::pair<int, const CallRecord*>>& calls,
                 Key key) {
  TracedRow row{sequence, {}};
  std::map<decltype(key(*calls.front().second)), size_t> place;
  for (const auto& [rank, call] : calls) {
    const auto [it, fresh] = place.emplace(key(*call), row.calls.size());
    if (fresh) row.calls.push_back({trace::describe(*call), {}});
    row.calls[it->second].ranks.push_back(rank);
  }
  std::stable_sort(
      row.calls.begin(), row.calls.end(),
      [](const TracedCall& a, const TracedCall& b) { return a.ranks.size() > b.ranks.size(); });
  return row;
}

std::pair<uint64_t, std::string> line_of(const CallRecord& call) {
  return {call.line, {call.file, ::strnlen(call.file, sizeof call.file)}};
}

void compare(const GroupCalls& ranks, GroupReport& report) {
  std::map<uint64_t, std::vector<std::pair<int, const CallRecord*>>> rows;
  for (const auto& [rank, calls] : ranks)
    for (const CallRecord* call : calls.collectives) rows[call->sequence].emplace_back(rank, call);
  const auto what = [](const CallRecord& call) { return call.fingerprint; };
  const auto what_and_where = [](const CallRecord& call) {
    return std::pair(call.fingerprint, line_of(call));
  };
  for (const auto& [sequence, calls] : rows) {
    const TracedRow row = row_of(sequence, calls, what);
    if (row.calls.size() > 1) {
      report.divergence = row;
      break;
    }
    if (calls.size() == ranks.size()) report.common = row;
    if (report.different_lines) continue;
    TracedRow lines = row_of(sequence, calls, what_and_where);
    if (lines.calls.size() > 1) report.different_lines = std::move(lines);
  }
  auto row = rows.end();
  for (size_t i = 0; i < kLastRows && row != rows.begin(); ++i) --row;
  for (; row != rows.end(); ++row)
    report.last.push_back(row_of(row->first, row->second, what_and_where));
}

void remote_of(const std::vector<const TraceFile*>& traces, TraceReport& report) {
  std::vector<PendingRemote>& all = report.remote;
  for (const TraceFile* trace : traces) {
    const size_t before = all.size();
    for (const CallRecord& call : trace->calls)
      if (trace::is_remote(call) && call.ended == 0)
        all.push_back(
            {trace->rank, trace::describe(call), seconds_since(*trace, call.begun).value_or(0)});
    if (all.size() - before >= trace::CallBoard::kRemoteRecords)
      report.remote_cut.push_back(trace->rank);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
}

RankState state_of(int rank, const RankCalls& calls) {
  RankState state;
  state.rank = rank;
  for (const CallRecord* move : calls.moves) {
    state.moves.push_back(trace::describe(*move) + ", for " +
                          seconds_text(seconds_since(*calls.trace, move->begun)));
  }
  if (calls.collectives.empty()) return state;
  const auto oldest_inside = std::find_if(calls.collectives.begin(), calls.collectives.end(),
                                          [](const CallRecord* call) { return call->ended == 0; });
  state.inside = oldest_inside != calls.collectives.end();
  const CallRecord& call = state.inside ? **oldest_inside : *calls.collectives.back();
  state.sequence = calls.collectives.back()->sequence;
  state.in_sequence = call.sequence;
  state.call = trace::describe(call);
  state.seconds = seconds_since(*calls.trace, state.inside ? call.begun : call.ended);
  return state;
}

GroupReport report_of(uint32_t group, const GroupCalls& ranks) {
  GroupReport report;
  report.group = group;
  uint64_t farthest = 0;
  for (const auto& [rank, calls] : ranks) {
    report.ranks.push_back(rank);
    report.states.push_back(state_of(rank, calls));
    farthest = std::max(farthest, report.states.back().sequence);
  }
  for (RankState& state : report.states) state.behind = farthest - state.sequence;
  compare(ranks, report);
  return report;
}

std::string sides_text(const TracedRow& row, const std::string& indent) {
  std::vector<std::string> who;
  size_t width = 0;
  for (const TracedCall& side : row.calls) {
    who.push_back(ranks_text(side.ranks));
    width = std::max(width, who.back().size());
  }
  std::string text;
  for (size_t i = 0; i < who.size(); ++i) {
    who[i].resize(width, ' ');
    text += indent + who[i] + "  " + row.calls[i].call + "\n";
  }
  return text;
}

std::string where(const RankState& state) {
  if (state.call.empty()) return "has made no collective call yet";
  if (state.inside)
    return "has been inside " + number(state.in_sequence) + " " + state.call + " for " +
           seconds_text(state.seconds);
  return "left " + number(state.in_sequence) + " " + state.call + " " +
         seconds_text(state.seconds) + " before and has called nothing since";
}

std::string group_name(const TraceReport& report, size_t index) {
  if (report.groups.size() == 1) return "";
  const GroupReport& group = report.groups[index];
  return "communicator " + std::to_string(index + 1) + " (" +
         (group.ranks == report.ranks ? "all ranks" : ranks_text(group.ranks)) + ")";
}

void judge_lag(const GroupReport& group, const std::string& of_group, TraceReport& report) {
  std::vector<int> ahead;
  const RankState* farthest = nullptr;
  for (const RankState& state : group.states) {
    if (state.behind != 0) continue;
    ahead.push_back(state.rank);
    if (farthest == nullptr || state.inside) farthest = &state;
  }
  if (ahead.size() == group.states.size()) return;
  report.wrong = true;
  report.verdict.push_back(ranks_text(ahead) + " came to " + number(farthest->sequence) + " " +
                           farthest->call + of_group + "; the others have not called it.");
  for (const RankState& state : group.states) {
    if (state.behind == 0) continue;
    report.verdict.push_back("rank " + std::to_string(state.rank) + " is " +
                             calls_text(state.behind) + " behind: it " + where(state) + ".");
  }
  report.verdict.emplace_back(
      "Look at what those ranks do after that call: a branch that skips the next one, longer work, "
      "an exception, an exit, or an input that they wait for.");
}

void judge(size_t index, TraceReport& report) {
  const GroupReport& group = report.groups[index];
  const std::string name = group_name(report, index);
  const std::string of_group = name.empty() ? "" : " of " + name;
  if (group.divergence) {
    report.wrong = true;
    report.verdict.push_back("The ranks fell out of step at call " +
                             number(group.divergence->sequence) + of_group + ":\n" +
                             sides_text(*group.divergence, "  "));
    report.verdict.back().pop_back();
    if (group.common)
      report.verdict.push_back("The last call that all made alike was " +
                               number(group.common->sequence) + " " +
                               group.common->calls.front().call + ".");
    report.verdict.emplace_back(
        "Every rank must make the same calls in the same order: look at what decides whether a "
        "rank comes to these lines.");
  } else {
    judge_lag(group, of_group, report);
  }
  const bool wrong_here =
      group.divergence || std::any_of(group.states.begin(), group.states.end(),
                                      [](const RankState& s) { return s.behind > 0; });
  if (wrong_here && group.different_lines) {
    report.verdict.push_back("Already " + number(group.different_lines->sequence) + of_group +
                             " was the same operation from different lines; one of them may be a "
                             "call too many or too few:\n" +
                             sides_text(*group.different_lines, "  "));
    report.verdict.back().pop_back();
  }
  if (wrong_here) return;
  std::vector<int> inside;
  for (const RankState& state : group.states)
    if (state.inside) inside.push_back(state.rank);
  if (inside.empty()) return;
  const RankState& first = *std::find_if(group.states.begin(), group.states.end(),
                                         [](const RankState& s) { return s.inside; });
  const bool all_inside = inside.size() == group.ranks.size() && report.missing.empty();
  report.verdict.push_back(
      (all_inside ? "All its ranks" : ranks_text(inside)) +
      (inside.size() == 1 ? " is inside " : " are inside ") + number(first.in_sequence) + " " +
      first.call + of_group +
      (report.missing.empty()
           ? ", and the calls agree: they move data, wait for a rank that was stopped, or lost "
             "their connection."
           : "; who is missed there has no trace."));
}

std::string time_text(int64_t unix_ns) {
  const auto seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string states_table(const GroupReport& group) {
  Table table({{"rank", Align::kRight},
               {"calls", Align::kRight},
               {"behind", Align::kRight},
               {"state", Align::kLeft},
               {"for", Align::kRight},
               {"call", Align::kLeft}});
  for (const RankState& state : group.states) {
    table.add({std::to_string(state.rank), std::to_string(state.sequence),
               std::to_string(state.behind),
               state.call.empty() ? "no call"
               : state.inside     ? "inside"
                                  : "returned",
               state.call.empty() ? "" : seconds_text(state.seconds),
               state.call.empty() ? "" : number(state.in_sequence) + " " + state.call});
    for (const std::string& move : state.moves) table.add({"", "", "", "inside", "", move});
  }
  return table.str();
}

std::string last_table(const GroupReport& group) {
  Table table({{"call", Align::kRight}, {"ranks", Align::kLeft}, {"what", Align::kLeft}});
  for (const TracedRow& row : group.last) {
    bool first = true;
    for (const TracedCall& call : row.calls) {
      table.add({first ? number(row.sequence) : "", rank_list(call.ranks), call.call});
      first = false;
    }
  }
  return table.str();
}

std::string remote_table(const std::vector<PendingRemote>& remote) {
  Table table({{"rank", Align::kRight}, {"for", Align::kRight}, {"call", Align::kLeft}});
  for (const PendingRemote& call : remote)
    table.add({std::to_string(call.rank), seconds_text(call.seconds), call.call});
  return table.str();
}

nlohmann::ordered_json json_of_row(const TracedRow& row) {
  nlohmann::ordered_json calls = nlohmann::ordered_json::array();
  for (const TracedCall& call : row.calls)
    calls.push_back({{"call", call.call}, {"ranks", call.ranks}});
  return {{"sequence", row.sequence}, {"calls", calls}};
}

}  // namespace

std::string rank_list(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i >= 3) {
      parts.push_back(std::to_string(ranks[i]) + " to " + std::to_string(ranks[end - 1]));
    } else {
      for (size_t k = i; k < end; ++k) parts.push_back(std::to_string(ranks[k]));
    }
    i = end;
  }
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i)
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return text;
}

TraceReport merge_traces(const std::vector<TraceFile>& traces) {
  if (traces.empty()) throw DataError("there are no traces to merge");
  TraceReport report;
  const std::vector<const TraceFile*> used = of_one_job(traces, report);
  auto groups = by_group(used);
  if (groups.empty()) groups.emplace_back(0, GroupCalls{});
  // A rank that has called nothing is reported where the job begins.
  for (const TraceFile* trace : used)
    if (std::all_of(trace->calls.begin(), trace->calls.end(), trace::is_remote))
      groups.front().second[trace->rank].trace = trace;
  remote_of(used, report);
  for (const auto& [group, ranks] : groups) report.groups.push_back(report_of(group, ranks));
  for (size_t i = 0; i < report.groups.size(); ++i) judge(i, report);
  if (!report.missing.empty()) {
    report.wrong = true;
    report.verdict.push_back(
        "No trace of " + ranks_text(report.missing) +
        ": copy the files of all hosts into one folder; without an agent (torchrun, mpirun) a rank "
        "writes its own only when its communicator breaks, so that killed and stuck ranks have "
        "none.");
  }
  if (!report.stale.empty())
    report.verdict.push_back("The trace of " + ranks_text(report.stale) +
                             " is of an earlier job and was left out.");
  if (!report.remote.empty()) {
    const PendingRemote& oldest = report.remote.front();
    report.verdict.push_back("Remote calls are pending; the oldest is rank " +
                             std::to_string(oldest.rank) + "'s " + oldest.call + ", for " +
                             seconds_text(oldest.seconds) + ".");
  }
  if (report.verdict.empty())
    report.verdict.emplace_back("All ranks made the same calls, and none is inside one.");
  return report;
}

std::string format_report(const TraceReport& report, size_t columns) {
  const std::string head = "Traces of " + std::to_string(report.ranks.size()) + " of " +
                           std::to_string(report.world_size) + " ranks, written " +
                           time_text(report.unix_ns) + ": " + report.reason;
  std::string text = wrapped(head, 0, 0, columns) + "\n\n";
  for (const std::string& line : report.verdict) text += wrapped(line, 0, 0, columns) + "\n";
  for (size_t i = 0; i < report.groups.size(); ++i) {
    const GroupReport& group = report.groups[i];
    const std::string name = group_name(report, i);
    text +=
        "\nWhere each rank is" + (name.empty() ? "" : ", " + name) + ":\n" + states_table(group);
    if (group.last.empty()) continue;
    text += "\nLast calls" + (name.empty() ? "" : ", " + name) + ":\n" + last_table(group);
  }
  if (!report.remote.empty())
    text +=
        "\nRemote calls that are pending for a second or longer:\n" + remote_table(report.remote);
  if (!report.remote_cut.empty())
    text += "Of " + ranks_text(report.remote_cut) + " these are the " +
            std::to_string(trace::CallBoard::kRemoteRecords) +
            " oldest, the most that are recorded: others may be pending, too.\n";
  return text;
}

nlohmann::ordered_json json_of(const TraceReport& report) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const GroupReport& group : report.groups) {
    nlohmann::ordered_json states = nlohmann::ordered_json::array(), last = states;
    for (const RankState& state : group.states) {
      states.push_back({{"rank", state.rank},
                        {"sequence", state.sequence},
                        {"behind", state.behind},
                        {"inside", state.inside},
                        {"in_sequence", state.in_sequence},
                        {"call", state.call},
                        {"seconds", nullptr},
                        {"moves", state.moves}});
      if (state.seconds) states.back()["seconds"] = *state.seconds;
    }
    for (const TracedRow& row : group.last) last.push_back(json_of_row(row));
    nlohmann::ordered_json entry = {{"group", group.group}, {"ranks", group.ranks}};
    const auto optional_row = [&](const char* name, const std::optional<TracedRow>& row) {
      entry[name] = row ? json_of_row(*row) : nlohmann::ordered_json();
    };
    optional_row("divergence", group.divergence);
    optional_row("last_common", group.common);
    optional_row("different_lines", group.different_lines);
    entry["states"] = states;
    entry["last_calls"] = last;
    groups.push_back(entry);
  }
  nlohmann::ordered_json remote = nlohmann::ordered_json::array();
  for (const PendingRemote& call : report.remote)
    remote.push_back({{"rank", call.rank}, {"call", call.call}, {"seconds", call.seconds}});
  return {{"world_size", report.world_size},
          {"ranks", report.ranks},
          {"missing", report.missing},
          {"stale", report.stale},
          {"reason", report.reason},
          {"written_unix_ns", report.unix_ns},
          {"wrong", report.wrong},
          {"verdict", report.verdict},
          {"groups", groups},
          {"remote", remote},
          {"remote_cut", report.remote_cut}};
}

}  // namespace lockstep::inline v0::cli
