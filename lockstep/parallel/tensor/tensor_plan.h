// The division of a model's parameters among several ranks, as data: a pattern of module names -> a
// style. No tensors, no ranks: code that loads, saves or checks asks for the slice of a part.
//
//   const TensorPlan plan({{"model.layers.*.mlp.up_proj", TensorStyle::kColumn},
//                          {"model.layers.*.mlp.down_proj", TensorStyle::kRow}});
//   plan.slice("model.layers.3.mlp.up_proj.weight", {11008, 4096}, 1, 4);  // dim 0, rows [2752, 5504)
//
// The styles are Megatron-LM's (Shoeybi et al., arXiv:1909.08053), of y = x weight^T + bias with a weight
// [outputs, inputs], as torch::nn::Linear has it:
//
//   style       weight           bias             what the module gives
//   kWhole      all of it        all of it        whole rows of whole inputs
//   kColumn     rows, evenly     with its rows    this part's columns of the outputs
//   kHeads      rows, by heads   with its rows    this part's heads; of fewer heads than parts one, which it shares
//   kRow        columns          all of it        a share of the sum; the bias is added once, to the whole sum
//   kVocabulary rows             with its rows    this part's words; sizes may differ by one
//   kExperts    all or nothing   with the weight  of `heads` experts, evenly, this part's own (model/lm_experts.h)
//
// The other styles divide no parameter, but the rows that a module works on (shard/parallelize.h): every part has all of
// the parameter.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/model/bert_config.h"
#include "lockstep/model/lm_config.h"

namespace lockstep::inline v0 {

// How a module is divided.
enum class TensorStyle : uint8_t {
  kWhole,
  kColumn,
  kHeads,
  kRow,
  kVocabulary,
  kExperts,
  kRows,       // works on this part's rows
  kRowsBegin,  // is given all rows, and gives this part's
  kRowsEnd,    // is given this part's rows, and gives all
  kPositions   // an Embedding of the positions of all rows, which gives those of this part's
};
// Whether a module of that style works on rows, and has its parameters whole.
LOCKSTEP_API bool is_of_rows(TensorStyle style);
LOCKSTEP_API const char* to_string(TensorStyle style);  // "column"

// A style for the modules of a name.
struct TensorRule {
  std::string modules;  // a name of named_modules(), or with * for one part (name_pattern.h)
  TensorStyle style = TensorStyle::kWhole;
  // kHeads: how many heads the rows are. kRow: how many the columns are; 0: columns need not stay together. kExperts: how
  // many experts there are.
  int64_t heads = 0;

  bool operator==(const TensorRule&) const = default;
};

// The indices [begin, end) of a parameter's dim `dim`; dim -1: all of it, which every part has.
struct PartSlice {
  int64_t dim = -1;
  int64_t begin = 0;
  int64_t end = 0;
  // The part before has the same indices: what the first one of them has counts, is written and gathered.
  bool repeated = false;

  bool whole() const { return dim < 0; }                   // every part has all of it
  bool empty() const { return dim >= 0 && begin == end; }  // another part has all of it
  bool operator==(const PartSlice&) const = default;
};
// The shape of a slice of a parameter that has `shape` in the whole model.
LOCKSTEP_API std::vector<int64_t> shape_of(const PartSlice& slice, std::vector<int64_t> shape);

// Parameters of a whole model: name and shape.
using NamedShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

// The slices of each part, by rules.
class LOCKSTEP_API TensorPlan {
 public:
  // The first of several rules that mean a module counts; a module that no rule means is whole.
  // Throws InvalidArgument: kHeads without heads, heads below 0.
  explicit TensorPlan(std::vector<TensorRule> rules = {});

  // In the order in which they are asked.
  const std::vector<TensorRule>& rules() const { return rules_; }
  // The rule of the module of that name; null: no rule means it.
  const TensorRule* rule_of(const std::string& module) const;

  // The slice that part `part` of `parts` has of the parameter of that name ("a.b.weight" is module a.b's) and shape.
  // The parts' slices in order cover it, each element once without those that are `repeated`, or each part has all of
  // it. Where heads are fewer than parts, and divide them, neighbours share one head; a single head is whole on each
  // part. Throws InvalidArgument that names the parameter where it does not divide so.
  PartSlice slice(const std::string& name, const std::vector<int64_t>& shape, int64_t part,
                  int64_t parts) const;

  // That every parameter divides among so many parts, and that every rule means one. Throws InvalidArgument that
  // names the parameter, or the rule's pattern.
  void check(const NamedShapes& parameters, int64_t parts) const;

 private:
  std::vector<TensorRule> rules_;
};

// TransformerLm's: attention by heads (of keys and values by theirs, which parts may share), inner columns (of every expert, too), the
// vocabulary of embeddings and head; routers, norms and the biases of the last products whole.
LOCKSTEP_API TensorPlan lm_tensor_plan(const LmConfig& config);
// The same of ranks that divide the experts (parallel/expert): all else whole.
LOCKSTEP_API TensorPlan lm_expert_plan(const LmConfig& config);
// The names and shapes that such a whole model has, in its order. Throws InvalidArgument (check(config)).
LOCKSTEP_API NamedShapes lm_parameter_shapes(const LmConfig& config);

// BertClassifier's, for parallelize() (shard/parallelize.h): attention by heads, inner columns, the words of the embeddings;
// all else whole.
LOCKSTEP_API TensorPlan bert_tensor_plan(const BertConfig& config);

}  // namespace lockstep::inline v0
