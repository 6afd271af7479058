#include "lockstep/cli/doctor/overlap.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/cli/usage.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/named_file.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::cli {
namespace {

using timeline::RankOverlap;

constexpr size_t kWidestBar = 60;

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// Milliseconds of a step, or of the whole where no steps are marked.
std::string ms(int64_t ns, const RankOverlap& rank) {
  return fixed(
      static_cast<double>(ns) / 1e6 / static_cast<double>(std::max<int64_t>(1, rank.steps)), 2);
}

std::string overlap_table(const std::vector<RankOverlap>& ranks) {
  Table table({{"rank"},
               {"steps"},
               {"ms a step"},
               {"collectives"},
               {"ms in them"},
               {"hidden in backward"},
               {"beside other work"},
               {"waited"},
               {"in backward"}});
  for (const RankOverlap& rank : ranks)
    table.add({std::to_string(rank.rank), std::to_string(rank.steps), ms(rank.time, rank),
               std::to_string(rank.collectives), ms(rank.communication, rank),
               ms(rank.hidden, rank), ms(rank.beside, rank), ms(rank.waited, rank),
               ms(rank.waited_in_backward, rank)});
  return table.str();
}

// The longest bar is the rank with the most communication.
std::string bars_of(const std::vector<RankOverlap>& ranks, size_t columns) {
  const size_t label = 5 + std::to_string(ranks.back().rank).size(), note = 14;
  const size_t room = columns > label + note + 12 ? columns - label - note - 2 : 10;
  const auto width = static_cast<double>(std::min(kWidestBar, room));
  int64_t longest = 1;
  for (const RankOverlap& rank : ranks) longest = std::max(longest, rank.communication);
  std::string text;
  for (const RankOverlap& rank : ranks) {
    std::string name = "rank " + std::to_string(rank.rank);
    name.resize(label, ' ');
    text += name + " |";
    int64_t sum = 0;
    size_t drawn = 0;
    const std::pair<int64_t, char> parts[] = {
        {rank.hidden, '#'}, {rank.beside, '+'}, {rank.waited, '.'}};
    for (const auto& [part, mark] : parts) {
      sum += part;
      const auto to = static_cast<size_t>(std::llround(share(sum, longest) * width));
      text.append(to - drawn, mark);
      drawn = to;
    }
    text += "| " + percent(1 - share(rank.waited, rank.communication), 0) + " hidden\n";
  }
  return text;
}

std::string head_of(const OverlapReport& report) {
  std::string head = "Timeline of " + std::to_string(report.ranks.size()) +
                     (report.ranks.size() == 1 ? " rank" : " ranks");
  if (!report.trace.steps.empty()) head += ", steps " + report.trace.steps;
  return head + ": " + report.file;
}

}  // namespace

std::optional<OverlapReport> read_overlap(const std::filesystem::path& folder_or_file) {
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(folder_or_file, error);
  const std::filesystem::path file = is_file ? folder_or_file : folder_or_file / "trace.json";
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  std::string text;
  try {
    text = read_named_file(file);
  } catch (const InvalidArgument& failure) {
    throw DataError(failure.what());
  }
  OverlapReport report{file.string(), timeline::parse_file(text, file.string()), {}};
  report.ranks = timeline::overlap_of(std::exchange(report.trace.events, {}));
  return report;
}

std::string format_overlap(const OverlapReport& report, size_t columns) {
  std::string text = wrapped(head_of(report), 0, 0, columns) + "\n\n";
  const auto say = [&](const std::string& line) { text += wrapped(line, 0, 0, columns) + "\n"; };
  if (report.ranks.empty()) return text + "It has no events.\n";
  if (report.trace.lost_spans > 0) {
    say(std::to_string(report.trace.lost_spans) +
        " marked spans found no room, so that it does not tell what was hidden: trace fewer steps, "
        "or give the Timeline a greater capacity.");
    return text;
  }
  text += overlap_table(report.ranks) + "\n";
  int64_t communication = 0, waited = 0, steps = 0;
  for (const RankOverlap& rank : report.ranks) {
    communication += rank.communication;
    waited += rank.waited;
    steps += rank.steps;
  }
  if (communication == 0) {
    say("There was no collective in this time.");
  } else {
    say("A rank's collectives: # while backward computed, + beside other work, . while the rank "
        "waited in a call.");
    text += bars_of(report.ranks, columns);
    say("Over all ranks " + percent(1 - share(waited, communication), 0) +
        " of the time in collectives was hidden behind the ranks' own work.");
  }
  if (steps == 0) say("No steps are marked, so that the whole time counts.");
  if (report.trace.lost_operators > 0)
    say(std::to_string(report.trace.lost_operators) +
        " operators found no room and are missing; trace fewer steps.");
  if (report.trace.lost_calls > 0)
    say(std::to_string(report.trace.lost_calls) +
        " calls were overwritten before they were read; call Timeline::collect() more often.");
  return text;
}

nlohmann::ordered_json json_of(const OverlapReport& report) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  const bool tells = report.trace.lost_spans == 0;
  for (const RankOverlap& rank : report.ranks)
    if (tells)
      ranks.push_back({{"rank", rank.rank},
                       {"steps", rank.steps},
                       {"time_ns", rank.time},
                       {"collectives", rank.collectives},
                       {"communication_ns", rank.communication},
                       {"hidden_in_backward_ns", rank.hidden},
                       {"beside_other_work_ns", rank.beside},
                       {"waited_ns", rank.waited},
                       {"waited_in_backward_ns", rank.waited_in_backward}});
  return {{"file", report.file},
          {"steps", report.trace.steps},
          {"lost_spans", report.trace.lost_spans},
          {"lost_operators", report.trace.lost_operators},
          {"lost_calls", report.trace.lost_calls},
          {"clock_error_ns", report.trace.clock_error_ns},
          {"ranks", ranks}};
}

}  // namespace lockstep::inline v0::cli
