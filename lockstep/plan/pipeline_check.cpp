#include "lockstep/plan/pipeline_check.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

using Key = std::tuple<int, int, int>;  // of a message
Key key_of(const PipelineMessage& message) {
  return {message.from, message.to, message.micro_batch};
}

[[noreturn]] void refuse(const PipelineSchedule& schedule, int stage, const std::string& what) {
  throw InvalidArgument("pipeline schedule " + schedule.name + ": stage " + std::to_string(stage) +
                        " " + what);
}

bool crosses(const PipelineSchedule& schedule, const PipelineMessage& message) {
  return schedule.stage_of[static_cast<size_t>(message.from)] !=
         schedule.stage_of[static_cast<size_t>(message.to)];
}

void check_form(const PipelineSchedule& schedule) {
  const auto stages = static_cast<size_t>(schedule.stages);
  const bool formed = schedule.stages >= 1 && schedule.chunks >= 1 && schedule.micro_batches >= 1 &&
                      schedule.actions.size() == stages &&
                      schedule.stage_of.size() == stages * static_cast<size_t>(schedule.chunks);
  if (!formed)
    throw InvalidArgument("pipeline schedule " + schedule.name + ": give the actions of " +
                          std::to_string(schedule.stages) + " stages and the stages of " +
                          std::to_string(schedule.all_chunks()) + " chunks");
  for (int stage = 0; stage < schedule.stages; ++stage) {
    if (static_cast<int>(schedule.chunks_of(stage).size()) != schedule.chunks)
      refuse(schedule, stage,
             "has " + std::to_string(schedule.chunks_of(stage).size()) +
                 " chunks of the model; give it " + std::to_string(schedule.chunks));
  }
}

// How often a chunk runs a micro-batch, by kind.
struct Runs {
  int of[4] = {};
  int& operator[](PipelineWork work) { return of[static_cast<size_t>(work)]; }
};

void check_completeness(const PipelineSchedule& schedule) {
  using enum PipelineWork;
  std::map<std::pair<int, int>, Runs> runs;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (const PipelineAction& action : schedule.actions[static_cast<size_t>(stage)]) {
      const bool known = action.chunk >= 0 && action.chunk < schedule.all_chunks() &&
                         action.micro_batch >= 0 && action.micro_batch < schedule.micro_batches;
      if (!known || schedule.stage_of[static_cast<size_t>(action.chunk)] != stage)
        refuse(schedule, stage, "runs " + to_string(action, 0) + ", which it does not have");
      Runs& of = runs[{action.chunk, action.micro_batch}];
      const std::string what = "runs " + to_string(action, schedule.chunks);
      if (++of[action.work] > 1) refuse(schedule, stage, what + " twice");
      const bool backward = action.work != kForward;
      if (backward && of[kForward] == 0) refuse(schedule, stage, what + " before its forward");
      if (action.work == kBackwardWeight && of[kBackwardInput] == 0)
        refuse(schedule, stage, what + " before the gradient of its input");
      if (of[kBackward] + of[kBackwardInput] > 1)
        refuse(schedule, stage, what + " as a second backward of the micro-batch");
    }
  }
  for (int chunk = 0; chunk < schedule.all_chunks(); ++chunk) {
    for (int i = 0; i < schedule.micro_batches; ++i) {
      Runs& of = runs[{chunk, i}];
      const bool whole = of[kForward] == 1 && of[kBackward] + of[kBackwardInput] == 1 &&
                         of[kBackwardInput] == of[kBackwardWeight];
      if (!whole)
        refuse(schedule, schedule.stage_of[static_cast<size_t>(chunk)],
               "does not run micro-batch " + std::to_string(i) + " of chunk " +
                   std::to_string(chunk) + " forward and backward");
    }
  }
}

void check_order(const PipelineSchedule& schedule) {
  std::map<std::pair<int, int>, std::deque<int>> sent;  // micro-batches, by chunks from and to
  for (const auto& actions : schedule.actions) {
    for (const PipelineAction& action : actions) {
      if (const auto message = sent_by(schedule, action))
        sent[{message->from, message->to}].push_back(message->micro_batch);
    }
  }
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (const PipelineAction& action : schedule.actions[static_cast<size_t>(stage)]) {
      const auto message = received_by(schedule, action);
      if (!message) continue;
      auto& waiting = sent[{message->from, message->to}];
      if (waiting.front() != message->micro_batch)
        refuse(schedule, stage,
               "runs " + to_string(action, schedule.chunks) + " where chunk " +
                   std::to_string(message->from) + " sends micro-batch " +
                   std::to_string(waiting.front()) +
                   "; run them in the order in which they are sent");
      waiting.pop_front();
    }
  }
}

// The stages, each at one of its actions.
class Run {
 public:
  Run(const PipelineSchedule& schedule, const PipelineDiscipline& discipline)
      : schedule_(schedule), discipline_(discipline), stages_(schedule.actions.size()) {}

  void to_the_end() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int stage = 0; stage < schedule_.stages; ++stage)
        while (advance(stage)) moved = true;
    }
    // Of those that stand, one that waits for a send says what to do.
    int standing = -1;
    for (int stage = schedule_.stages - 1; stage >= 0; --stage) {
      if (!ended(stage) && (standing < 0 || full(stage) || !full(standing))) standing = stage;
    }
    if (standing >= 0) refuse(schedule_, standing, "waits for ever " + reason(standing));
  }

 private:
  struct Stage {
    size_t next = 0;        // action
    size_t posted = 0;      // actions whose receives are posted
    std::deque<Key> sends;  // that wait for their receives
  };

  const std::vector<PipelineAction>& actions_of(int stage) const {
    return schedule_.actions[static_cast<size_t>(stage)];
  }
  bool ended(int stage) const {
    return stages_[static_cast<size_t>(stage)].next == actions_of(stage).size();
  }

  void post(int stage) {
    Stage& at = stages_[static_cast<size_t>(stage)];
    const auto& actions = actions_of(stage);
    int ahead = 0;
    for (size_t i = at.next; i < actions.size(); ++i) {
      const auto message = received_by(schedule_, actions[i]);
      if (!message || !crosses(schedule_, *message)) continue;
      if (i > at.next && ++ahead > discipline_.receives_ahead) break;
      posted_.insert(key_of(*message));
    }
  }

  bool full(int stage) const {
    return discipline_.most_sends != 0 &&
           static_cast<int>(stages_[static_cast<size_t>(stage)].sends.size()) >
               discipline_.most_sends;
  }

  bool advance(int stage) {
    Stage& at = stages_[static_cast<size_t>(stage)];
    if (ended(stage)) return false;
    // Sends end in the order in which the stage looks at them: the oldest first.
    while (!at.sends.empty() && posted_.contains(at.sends.front())) at.sends.pop_front();
    if (full(stage)) return false;
    post(stage);
    const PipelineAction& action = actions_of(stage)[at.next];
    if (const auto message = received_by(schedule_, action);
        message && !sent_.contains(key_of(*message)))
      return false;
    if (const auto message = sent_by(schedule_, action)) {
      sent_.insert(key_of(*message));
      if (crosses(schedule_, *message)) at.sends.push_back(key_of(*message));
    }
    ++at.next;
    return true;
  }

  std::string reason(int stage) const {
    const Stage& at = stages_[static_cast<size_t>(stage)];
    const PipelineAction& action = actions_of(stage)[at.next];
    const std::string where = "before " + to_string(action, schedule_.chunks);
    if (full(stage))
      return where + " for the first of " + std::to_string(at.sends.size()) +
             " sends to be received; let more of them wait";
    const auto message = received_by(schedule_, action);
    return where + (message ? " for chunk " + std::to_string(message->from) : std::string());
  }

  const PipelineSchedule& schedule_;
  PipelineDiscipline discipline_;
  std::vector<Stage> stages_;
  std::set<Key> posted_, sent_;
};

bool is_backward_of_input(PipelineWork work) {
  return work == PipelineWork::kBackward || work == PipelineWork::kBackwardInput;
}

}  // namespace

std::optional<PipelineMessage> received_by(const PipelineSchedule& schedule,
                                           const PipelineAction& action) {
  if (action.work == PipelineWork::kForward && action.chunk > 0)
    return PipelineMessage{action.chunk - 1, action.chunk, action.micro_batch};
  if (is_backward_of_input(action.work) && action.chunk + 1 < schedule.all_chunks())
    return PipelineMessage{action.chunk + 1, action.chunk, action.micro_batch};
  return std::nullopt;
}

std::optional<PipelineMessage> sent_by(const PipelineSchedule& schedule,
                                       const PipelineAction& action) {
  if (action.work == PipelineWork::kForward && action.chunk + 1 < schedule.all_chunks())
    return PipelineMessage{action.chunk, action.chunk + 1, action.micro_batch};
  if (is_backward_of_input(action.work) && action.chunk > 0)
    return PipelineMessage{action.chunk, action.chunk - 1, action.micro_batch};
  return std::nullopt;
}

void check_schedule(const PipelineSchedule& schedule, const PipelineDiscipline& discipline) {
  if (discipline.receives_ahead < 0 || discipline.most_sends < 0)
    throw InvalidArgument("pipeline schedule " + schedule.name + ": " +
                          std::to_string(discipline.receives_ahead) + " receives ahead and " +
                          std::to_string(discipline.most_sends) + " sends; give 0 or more");
  check_form(schedule);
  check_completeness(schedule);
  check_order(schedule);
  Run(schedule, discipline).to_the_end();
}

std::vector<int> peak_activations(const PipelineSchedule& schedule) {
  std::vector<int> peaks;
  for (const auto& actions : schedule.actions) {
    int held = 0, most = 0;
    for (const PipelineAction& action : actions) {
      if (action.work == PipelineWork::kForward) most = std::max(most, ++held);
      if (action.work == PipelineWork::kBackward || action.work == PipelineWork::kBackwardWeight)
        --held;
    }
    peaks.push_back(most);
  }
  return peaks;
}

std::optional<int> expected_peak(const PipelineSchedule& schedule, int stage) {
  const int p = schedule.stages, m = schedule.micro_batches, v = schedule.chunks;
  if (schedule.name == "gpipe") return m;
  if (schedule.name == "1f1b" || (schedule.name == "interleaved" && v == 1))
    return std::min(m, p - stage);
  if (schedule.name == "interleaved") {
    const int group = m / std::max(1, m / p);
    return std::min(m * v, (v - 1) * group + 2 * (p - 1 - stage) + 1);
  }
  if (schedule.name == "zb-h1") return std::min(m, p);
  if (schedule.name == "zb-v" && m >= 2 * p - 1) return 2 * p;
  return std::nullopt;
}

}  // namespace lockstep::inline v0
