// Text of a graph: read, or E0202; what is read is printed and read again as the same.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "taken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace abele;
  try {
    const ir::Graph graph = ir::parse(std::string_view(reinterpret_cast<const char*>(data), size));
    ir::verify(graph, ir::Form::kStaged);
    ++test::taken;
    const std::string text = ir::print(graph);
    ABELE_CHECK(ir::print(ir::parse(text)) == text, "another text is printed of what was printed");
  } catch (const UserError&) {
  }
  return 0;
}
