#include "lockstep/testing/fake_cuda/internal/place.h"

#include "lockstep/testing/fake_cuda/internal/callers.h"

namespace lockstep::inline v0::testing::fake {
namespace {

constexpr size_t kCallers = 3;  // that a report names

}  // namespace

PlacePtr make_place(std::string operation, std::string where, std::string node, bool callers) {
  auto place = std::make_shared<Place>();
  place->operation = std::move(operation);
  place->where = std::move(where);
  place->node = std::move(node);
  if (callers) find_callers(place->callers);
  return place;
}

std::string describe(const Place& place) {
  std::string text = place.operation + " on " + place.where;
  if (!place.node.empty()) text += ", in " + place.node;
  const std::vector<std::string> callers = name_callers(place.callers, kCallers);
  for (size_t i = 0; i < callers.size(); ++i)
    text += (i == 0 ? ", called from " : " < ") + callers[i];
  return text;
}

void prepare_to_describe(const std::vector<PlacePtr>& places) {
  std::vector<void*> callers;
  for (const PlacePtr& place : places)
    if (place) callers.insert(callers.end(), place->callers.begin(), place->callers.end());
  look_up(callers);
}

}  // namespace lockstep::inline v0::testing::fake
