#include "lockstep/plan/refused_products.h"

#include <algorithm>

namespace lockstep::inline v0 {

const std::vector<RefusedProduct>& refused_products() {
  static const std::vector<RefusedProduct> products{
      {"zero 2", "tied embeddings",
       "where a pipeline's ends share them, their gradients are added up after backward, and stage "
       "2 has "
       "taken them away by then; give --zero 1"},
      {"zero 3", "tied embeddings",
       "where a pipeline's ends share them, their gradients are added up after backward, and stage "
       "3 has "
       "taken them away by then; give --zero 1"},
      {"context", "dropout of attention",
       "the blocks of attention are not drawn by one rank; give attention_dropout 0"}};
  return products;
}

const RefusedProduct* refused_among(const std::vector<std::string>& used) {
  const auto among = [&](const std::string& way) {
    return std::find(used.begin(), used.end(), way) != used.end();
  };
  for (const RefusedProduct& product : refused_products())
    if (among(product.first) && among(product.second)) return &product;
  return nullptr;
}

std::string to_string(const RefusedProduct& product) {
  return product.first + " and " + product.second + " do not go together: " + product.why;
}

}  // namespace lockstep::inline v0
