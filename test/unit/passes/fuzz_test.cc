// Damaged texts: every outcome but a crash or an internal error is fine.
#include <gtest/gtest.h>

#include <cctype>

#include "../../support/random_graph.h"
#include "base/error.h"
#include "ir/text.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

std::string damaged(std::string text, std::mt19937& random) {
  auto below = [&](size_t n) { return random() % n; };
  for (size_t changes = 1 + below(4); changes > 0 && !text.empty(); --changes) {
    size_t at = below(text.size());
    constexpr std::string_view kBytes = "0123456789%,:()[]{}+-\"\\#=@_ \nabefinsvwx.";
    switch (below(8)) {
      case 0: text[at] = kBytes[below(kBytes.size())]; break;
      case 1: text.insert(at, 1, kBytes[below(kBytes.size())]); break;
      case 2: text.erase(at, 1 + below(8)); break;
      case 3:
      case 4:
      case 5:
      case 6:  // another number, which the parser takes more often
        while (at + 1 < text.size() && !std::isdigit(static_cast<unsigned char>(text[at]))) ++at;
        text[at] = kBytes[below(10)];
        break;
      default: {  // another line, from anywhere
        size_t from = text.rfind('\n', below(text.size())), to = text.find('\n', at);
        if (from == std::string::npos || to == std::string::npos) break;
        text.insert(to, text.substr(from, text.find('\n', from + 1) - from));
      }
    }
  }
  return text;
}

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
