// Damaged texts: any outcome except a crash or an internal error is acceptable.
#include <gtest/gtest.h>

#include "../../support/random_graph.h"
#include "../../support/random_text.h"
#include "base/error.h"
#include "ir/text.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

using test::damaged;

TEST(Fuzz, DamagedTextsAreRefusedOrRun) {
  int num_parsed = 0, num_ran = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::string text = damaged(ir::print(test::RandomGraph(seed % 100).make()), random);
    try {
      ir::Graph graph = ir::parse(text);
      ++num_parsed;
      ASSERT_EQ(ir::print(ir::parse(ir::print(graph))), ir::print(graph)) << text;
      ir::verify(graph, ir::Form::kLowered);
      PassContext context;
      runPipeline(graph, context);
      ++num_ran;
    } catch (const UserError&) {
    } catch (const InternalError& error) {
      FAIL() << "seed " << seed << "\n" << error.what() << "\n" << text;
    }
  }
  EXPECT_GT(num_parsed, 300);
  EXPECT_GT(num_ran, 100);
}

}  // namespace
}  // namespace abele::passes
