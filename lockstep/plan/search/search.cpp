#include "lockstep/plan/search/search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "lockstep/core/errors.h"
#include "lockstep/plan/search/bounds.h"
#include "lockstep/plan/search/enumerate.h"

namespace lockstep::inline v0::plan {
namespace {

constexpr size_t kTooLarge = 3;   // shown
constexpr size_t kNearest = 256;  // of those that do not fit, so many are timed

// Variants of one mesh and ZeRO stage are one line for people.
using Key = std::array<int, 7>;
Key key_of(const Layout& layout) {
  return {layout.data,   layout.pipe, layout.context,    layout.expert,
          layout.tensor, layout.zero, layout.shard_ranks};
}

// Faster first; of those that are as fast the one that takes less memory, and then the simpler one.
bool better(const Candidate& a, const Candidate& b) {
  if (a.estimate.step != b.estimate.step) return a.estimate.step < b.estimate.step;
  if (a.estimate.spare_bytes != b.estimate.spare_bytes)
    return a.estimate.spare_bytes > b.estimate.spare_bytes;
  return key_of(a.layout) < key_of(b.layout);
}

// A layout that does not fit, and by how much.
struct Unfit {
  Layout layout;
  double lack = 0;
};

// A mesh with a micro-batch and its rows, of which schedule, ZeRO stage and policy are open.
struct Unit {
  const MeshOptions* options = nullptr;
  Layout layout;
  double least = 0;  // no step of it is below
};

class Search {
 public:
  Search(const ModelShape& model, const SearchRequest& request, const Machine& machine,
         const Stack& stack)
      : model_(model), request_(request), machine_(machine), stack_(stack) {}

  SearchResult run();

 private:
  std::vector<Unit> units_of(const std::vector<MeshOptions>& meshes);
  void look_at(const Unit& unit);
  // The layout of a unit with a schedule.
  Layout scheduled(const Unit& unit, const Scheduled& how);
  // The layout with the fastest policy whose activations fit and that may be among the best.
  // `floors`: of each policy what no step with a ZeRO stage below 3 is below; 0: not known.
  struct Policies {
    std::vector<MicroBatchWork> works;
    std::vector<double> floors;
  };
  std::optional<Layout> fitting(Layout layout, Policies* policies);
  bool fits(const Layout& layout);
  // The time that it takes beside what the ZeRO stage decides.
  double time(const Layout& layout);
  void lower_threshold();
  std::vector<Candidate> too_large(double below);
  [[noreturn]] void refuse() const;

  const ModelShape& model_;
  const SearchRequest& request_;
  const Machine& machine_;
  const Stack& stack_;
  const std::vector<Activations> policies_ = policies_of(request_);
  PipelineShapes shapes_;
  std::map<int, std::vector<int64_t>> cuts_;  // of so many chunks the layers
  std::map<Key, Candidate> best_;
  std::map<Key, Unfit> unfit_;
  // No layout whose step is above this can be among the best any more.
  double threshold_ = std::numeric_limits<double>::infinity();
  SearchResult result_;
};

bool Search::fits(const Layout& layout) {
  ++result_.weighed;
  const double needed =
      estimate_memory(model_, layout, stack_, &shapes_, sharers_of(layout, machine_, stack_))
          .of_worst()
          .total();
  if (needed <= machine_.memory) return true;
  const Unfit unfit{layout, needed - machine_.memory};
  const auto [at, fresh] = unfit_.try_emplace(key_of(layout), unfit);
  if (!fresh && unfit.lack < at->second.lack) at->second = unfit;
  return false;
}

std::optional<Layout> Search::fitting(Layout layout, Policies* policies) {
  for (size_t i = 0; i < policies_.size(); ++i) {
    layout.activations = policies_[i];
    if (policies->works.size() == i)
      policies->works.push_back(work_of(model_, layout, machine_, stack_, &shapes_));
    if (least_step(layout, policies->works[i]) > threshold_) return std::nullopt;
    if (layout.zero < 3 && policies->floors[i] > threshold_) return std::nullopt;
    if (fits(layout)) return layout;
  }
  return std::nullopt;
}

double Search::time(const Layout& layout) {
  ++result_.timed;
  Candidate candidate{.layout = layout,
                      .estimate = estimate(model_, layout, machine_, stack_, &shapes_),
                      .loses = ""};
  const TimeParts& parts = candidate.estimate.time;
  const double fixed =
      candidate.estimate.step - parts.gradients - parts.parameters - parts.optimizer - parts.host;
  const auto [at, fresh] = best_.try_emplace(key_of(layout), candidate);
  if (fresh || better(candidate, at->second)) {
    at->second = std::move(candidate);
    lower_threshold();
  }
  return fixed;
}

void Search::lower_threshold() {
  if (best_.size() < request_.top) return;
  std::vector<double> steps;
  for (const auto& [key, candidate] : best_) steps.push_back(candidate.estimate.step);
  const auto last = steps.begin() + static_cast<std::ptrdiff_t>(request_.top - 1);
  std::nth_element(steps.begin(), last, steps.end());
  threshold_ = *last;
}

Layout Search::scheduled(const Unit& unit, const Scheduled& how) {
  Layout layout = unit.layout;
  layout.schedule = how.name;
  layout.chunks = how.chunks;
  const int chunks = layout.pipe * layout.chunks;
  // With more chunks than layers it is refused, as it is without a cut.
  if (!request_.as_trained || chunks == 1 || chunks > model_.layers) return layout;
  auto& cut = cuts_[chunks];
  if (cut.empty()) cut = lockstep_cut(model_, chunks);
  layout.cut = cut;
  return layout;
}

void Search::look_at(const Unit& unit) {
  Policies policies;  // as far as they were needed
  for (const Scheduled& how : unit.options->schedules) {
    Layout layout = scheduled(unit, how);
    policies.floors.assign(policies_.size(), 0);
    // Stage 3 is no floor of the memory: of a few ranks, what it gathers is more than what it saves.
    const auto& shards = unit.options->shards;
    for (auto sharded = shards.rbegin(); sharded != shards.rend(); ++sharded) {
      layout.zero = sharded->zero;
      layout.shard_ranks = sharded->ranks;
      if (!allowed(layout, model_)) continue;
      const std::optional<Layout> fits = fitting(layout, &policies);
      if (!fits) continue;
      const double fixed = time(*fits);
      if (fits->zero < 3)
        policies.floors[static_cast<size_t>(
            std::find(policies_.begin(), policies_.end(), fits->activations) - policies_.begin())] =
            fixed;
    }
  }
}

std::vector<Unit> Search::units_of(const std::vector<MeshOptions>& meshes) {
  std::vector<Unit> units;
  for (const MeshOptions& options : meshes) {
    result_.layouts += options.combinations() * static_cast<int64_t>(policies_.size());
    for (const int64_t size : options.micro_batches) {
      for (const bool divides : options.divides_rows) {
        Unit unit{.options = &options, .layout = options.mesh};
        unit.layout.micro_batch = size;
        unit.layout.divides_rows = divides;
        unit.layout.activations = policies_.front();
        if (!allowed(unit.layout, model_)) continue;
        unit.least = std::numeric_limits<double>::infinity();
        const MicroBatchWork work = work_of(model_, unit.layout, machine_, stack_, &shapes_);
        for (const Scheduled& how : options.schedules)
          unit.least = std::min(unit.least, least_step(scheduled(unit, how), work));
        units.push_back(std::move(unit));
      }
    }
  }
  std::stable_sort(units.begin(), units.end(),
                   [](const Unit& a, const Unit& b) { return a.least < b.least; });
  return units;
}

std::vector<Candidate> Search::too_large(double below) {
  std::vector<Unfit> nearest;
  for (const auto& [key, unfit] : unfit_)
    if (!best_.contains(key)) nearest.push_back(unfit);
  std::stable_sort(nearest.begin(), nearest.end(),
                   [](const Unfit& a, const Unfit& b) { return a.lack < b.lack; });
  if (nearest.size() > kNearest) nearest.resize(kNearest);
  std::vector<Candidate> found;
  for (const Unfit& unfit : nearest) {
    if (least_step(model_, unfit.layout, machine_, stack_) >= below) continue;
    ++result_.timed;
    Candidate candidate{.layout = unfit.layout,
                        .estimate = estimate(model_, unfit.layout, machine_, stack_, &shapes_),
                        .loses = ""};
    if (candidate.estimate.step >= below) continue;
    candidate.loses = lack_of(candidate.estimate);
    found.push_back(std::move(candidate));
  }
  // Where something fits, the fastest of those that would beat it; else those that lack least.
  if (!best_.empty()) std::stable_sort(found.begin(), found.end(), better);
  if (found.size() > kTooLarge) found.resize(kTooLarge);
  return found;
}

void Search::refuse() const {
  const bool asked = request_.zero || request_.schedule || request_.chunks ||
                     request_.micro_batch || request_.divides_rows;
  throw InvalidArgument("no layout divides model " + model_.name + " and " +
                        std::to_string(request_.job.global_batch) + " sequences of " +
                        std::to_string(request_.job.sequence) + " tokens among " +
                        std::to_string(request_.ranks) + " ranks" +
                        (asked ? " in the ways that are asked for" : "") +
                        "; give ranks or a global batch with more common divisors");
}

SearchResult Search::run() {
  const std::vector<MeshOptions> meshes = meshes_of(model_, request_, machine_);
  const std::vector<Unit> units = units_of(meshes);
  for (const Unit& unit : units) {
    if (unit.least > threshold_) break;
    look_at(unit);
  }
  if (result_.weighed == 0) refuse();
  for (auto& [key, candidate] : best_) result_.best.push_back(std::move(candidate));
  std::sort(result_.best.begin(), result_.best.end(), better);
  if (result_.best.size() > request_.top) result_.best.resize(request_.top);
  for (size_t i = 1; i < result_.best.size(); ++i)
    result_.best[i].loses = why_slower(result_.best.front().estimate, result_.best[i].estimate);
  result_.too_large = too_large(result_.best.empty() ? std::numeric_limits<double>::infinity()
                                                     : result_.best.front().estimate.step);
  return std::move(result_);
}

}  // namespace

SearchResult search(const ModelShape& model, const SearchRequest& request, const Machine& machine,
                    const Stack& stack) {
  check(model);
  check(machine);
  if (request.ranks < 1)
    throw InvalidArgument("search: " + std::to_string(request.ranks) + " ranks; give 1 or more");
  if (request.top < 1) throw InvalidArgument("search: the best 0 layouts; give 1 or more");
  return Search(model, request, machine, stack).run();
}

}  // namespace lockstep::inline v0::plan
