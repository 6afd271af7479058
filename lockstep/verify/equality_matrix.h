// The equality matrix: every product of ways on every kind of model. No other project publishes
// one, and bugs in products of parallelisms that change numbers silently are an open list elsewhere
// (Megatron-LM#7452).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/verify/equality.h"
#include "lockstep/verify/plain_equality.h"

namespace lockstep::inline v0 {

struct EqualityModel {
  std::string name;  // "grouped heads"
  std::variant<LmConfig, PlainModel> model;
};
// Throws: InvalidArgument for what the model does not take, before anything is trained.
void check(const EqualityModel& model, const Parallelism& how, int ranks);
EqualityRun train_whole(const EqualityModel& model, const EqualityOptions& options = {});
EqualityRun train_divided(const EqualityModel& model, const Parallelism& how, int ranks,
                          const EqualityOptions& options = {});
const std::vector<EqualityModel>& equality_models();

struct EqualityProduct {
  Parallelism how;
  int ranks = 1;
};
// "data=2,pipe=2,tensor=2, zero 1, zb-h1, 4 micro-batches, divided rows"
std::string to_string(const EqualityProduct& product);
// The products on up to `most_ranks` ranks.
std::vector<EqualityProduct> equality_products(int most_ranks = 8);

// One cell of the matrix.
struct EqualityCell {
  std::string model;
  EqualityProduct product;
  std::string refused;  // the reason why the product is not allowed; the rest is empty then
  EqualityResult result = {};
  std::optional<bool> repeats{};  // whether a second run ended in the same bits, if there was one
  double seconds = 0;
  bool holds(double tolerance) const;
};

struct MatrixOptions {
  EqualityOptions training = {};
  bool repeat = false;  // trains each product a second time
};
// The usual tolerance: 1e-10 in float64, 1e-5 in float32.
double default_tolerance(at::ScalarType dtype);

// The cell of a product and a model that one process has trained to `expected`.
EqualityCell compare_product(const EqualityModel& model, const EqualityRun& expected,
                             const EqualityProduct& product, const MatrixOptions& options);

}  // namespace lockstep::inline v0
