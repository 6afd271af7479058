#include "lockstep/plan/pipeline_schedule.h"

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0 {
namespace {

using enum PipelineWork;
using Actions = std::vector<PipelineAction>;

// The actions of one chunk, counted: each call is the next micro-batch's.
class Turns {
 public:
  Turns(Actions& to, int chunk) : to_(to), chunk_(chunk) {}
  void forward() { to_.push_back({kForward, chunk_, forwards_++}); }
  void backward() { to_.push_back({kBackward, chunk_, inputs_++}); }
  void input() { to_.push_back({kBackwardInput, chunk_, inputs_++}); }
  void weight() { to_.push_back({kBackwardWeight, chunk_, weights_++}); }
  int forwards() const { return forwards_; }
  int inputs() const { return inputs_; }
  int weights() const { return weights_; }

 private:
  Actions& to_;
  int chunk_;
  int forwards_ = 0, inputs_ = 0, weights_ = 0;
};

Actions gpipe(int stage, const PipelineSize& size) {
  Actions actions;
  Turns turns(actions, stage);
  for (int i = 0; i < size.micro_batches; ++i) turns.forward();
  for (int i = 0; i < size.micro_batches; ++i) turns.backward();
  return actions;
}

// As many forwards as stages follow, then one before each backward(micro-batch).
template <typename Backward>
void one_for_one(Turns& turns, int stage, const PipelineSize& size, const Backward& backward) {
  const int ahead = std::min(size.micro_batches, size.stages - 1 - stage);
  for (int i = 0; i < ahead; ++i) turns.forward();
  for (int i = 0; i < size.micro_batches; ++i) {
    if (turns.forwards() < size.micro_batches) turns.forward();
    backward(i);
  }
}

Actions one_forward_one_backward(int stage, const PipelineSize& size) {
  Actions actions;
  Turns turns(actions, stage);
  one_for_one(turns, stage, size, [&](int) { turns.backward(); });
  return actions;
}

// Gradients of weights lag by as many micro-batches as the stage has before it: then every stage
// holds as many as the first one, and the lag fills what the last stages would wait at the end.
Actions zero_bubble_h1(int stage, const PipelineSize& size) {
  Actions actions;
  Turns turns(actions, stage);
  one_for_one(turns, stage, size, [&](int micro_batch) {
    turns.input();
    if (micro_batch >= stage) turns.weight();
  });
  while (turns.weights() < size.micro_batches) turns.weight();
  return actions;
}

int groups_of(const PipelineSize& size) {
  return std::max(1, size.micro_batches / size.stages);
}

// The k-th forward of a stage, or backward, with chunks counted from the end: a group of micro-batches
// through one chunk, the same group through the next.
PipelineAction interleaved_turn(PipelineWork work, int k, int stage, const PipelineSize& size) {
  const int group = size.micro_batches / groups_of(size);
  const int in_round = k % (group * size.chunks);
  const int place = in_round / group;
  const int own = work == kForward ? place : size.chunks - 1 - place;
  return {work, own * size.stages + stage, k / (group * size.chunks) * group + in_round % group};
}

Actions interleaved(int stage, const PipelineSize& size) {
  const int all = size.micro_batches * size.chunks;
  const int group = size.micro_batches / groups_of(size);
  const int ahead = std::min(all, (size.chunks - 1) * group + 2 * (size.stages - 1 - stage));
  Actions actions;
  int forwards = 0;
  const auto forward = [&] {
    actions.push_back(interleaved_turn(kForward, forwards++, stage, size));
  };
  while (forwards < ahead) forward();
  for (int k = 0; k < all; ++k) {
    if (forwards < all) forward();
    actions.push_back(interleaved_turn(kBackward, k, stage, size));
  }
  return actions;
}

// The building block of V-ZB, repeated: each stage's forwards and backwards of both of its chunks take
// turns so that, where all three kinds of work take one time, none of them ever waits. Made for enough
// micro-batches to fill the pipeline; those that are not there are left out.
Actions zero_bubble_v(int stage, const PipelineSize& size) {
  const int enough = std::max(2 * size.stages - 1, size.micro_batches);
  const int behind = size.stages - stage;  // stages from here to the turn, this one included
  Actions actions;
  Turns there(actions, stage), back(actions, 2 * size.stages - 1 - stage);
  const auto both = [](Turns& turns) {
    turns.input();
    turns.weight();
  };
  for (int i = 0; i < 2 * behind - 1; ++i) there.forward();
  for (int i = 0; i < stage; ++i) {
    back.forward();
    there.forward();
  }
  for (int i = 0; i < behind; ++i) {
    back.forward();
    both(back);
  }
  while (back.forwards() < there.forwards() || there.forwards() < enough) {
    if (there.forwards() < enough) there.forward();
    both(there);
    back.forward();
    both(back);
  }
  for (int i = 0; i < stage; ++i) {
    there.input();
    back.input();
  }
  for (int i = 0; i < behind; ++i) {
    there.input();
    there.weight();
  }
  while (back.weights() < back.inputs()) back.weight();
  while (there.weights() < there.inputs()) there.weight();
  std::erase_if(actions, [&](const PipelineAction& action) {
    return action.micro_batch >= size.micro_batches;
  });
  return actions;
}

struct Kind {
  std::string name;
  int chunks;  // 0: any number
  int usual;
  Actions (*of)(int stage, const PipelineSize& size);
};
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kKinds{{"gpipe", 1, 1, gpipe},
                                        {"1f1b", 1, 1, one_forward_one_backward},
                                        {"interleaved", 0, 2, interleaved},
                                        {"zb-h1", 1, 1, zero_bubble_h1},
                                        {"zb-v", 2, 2, zero_bubble_v}};
  return kKinds;
}

const Kind& kind_named(std::string_view name) {
  for (const Kind& kind : kinds()) {
    if (kind.name == name) return kind;
  }
  const std::string near = nearest_name(name, schedule_names());
  throw InvalidArgument("no pipeline schedule '" + std::string(name) + "'" +
                        (near.empty() ? "" : " (did you mean " + near + "?)") + "; give one of " +
                        joined(schedule_names()));
}

void check_size(const Kind& kind, const PipelineSize& size) {
  const std::string what = "pipeline schedule " + kind.name + ": ";
  if (size.stages < 1 || size.micro_batches < 1)
    throw InvalidArgument(what + std::to_string(size.stages) + " stages and " +
                          std::to_string(size.micro_batches) +
                          " micro-batches; give at least one of each");
  if (size.chunks < 1 || (kind.chunks != 0 && size.chunks != kind.chunks))
    throw InvalidArgument(what + std::to_string(size.chunks) + " chunks a stage; give " +
                          (kind.chunks == 0 ? "at least 1" : std::to_string(kind.chunks)));
  if (kind.name != "interleaved" || size.chunks == 1) return;
  const int groups = groups_of(size);
  if (size.micro_batches % groups != 0)
    throw InvalidArgument(
        what + std::to_string(size.micro_batches) + " micro-batches on " +
        std::to_string(size.stages) + " stages go round in " + std::to_string(groups) +
        " groups, which they do not divide into; give a multiple of the stages, such as " +
        std::to_string((size.micro_batches / size.stages + 1) * size.stages));
}

}  // namespace

char letter_of(PipelineWork work) {
  return "FBIW"[static_cast<int>(work)];
}

std::string to_string(const PipelineAction& action, int chunks) {
  const std::string text = letter_of(action.work) + std::to_string(action.micro_batch);
  return chunks == 1 ? text : text + " of chunk " + std::to_string(action.chunk);
}

std::vector<int> PipelineSchedule::chunks_of(int stage) const {
  std::vector<int> own;
  for (int chunk = 0; chunk < static_cast<int>(stage_of.size()); ++chunk) {
    if (stage_of[static_cast<size_t>(chunk)] == stage) own.push_back(chunk);
  }
  return own;
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const Kind& kind : kinds()) names.push_back(kind.name);
    return names;
  }();
  return kNames;
}

PipelineSchedule make_schedule(std::string_view name, const PipelineSize& wanted) {
  const Kind& kind = kind_named(name);
  PipelineSize size = wanted;
  if (size.chunks == 0) size.chunks = kind.usual;
  check_size(kind, size);
  // One chunk a stage: there is nothing to go round.
  const bool plain = kind.name == "interleaved" && size.chunks == 1;
  PipelineSchedule schedule{kind.name, size.stages, size.micro_batches, size.chunks, {}, {}};
  for (int chunk = 0; chunk < schedule.all_chunks(); ++chunk) {
    const bool returns = kind.name == "zb-v" && chunk >= size.stages;
    schedule.stage_of.push_back(returns ? 2 * size.stages - 1 - chunk : chunk % size.stages);
  }
  for (int stage = 0; stage < size.stages; ++stage)
    schedule.actions.push_back(plain ? one_forward_one_backward(stage, size)
                                     : kind.of(stage, size));
  return schedule;
}

}  // namespace lockstep::inline v0
