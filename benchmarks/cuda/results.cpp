#include "cuda/results.hpp"

#include <cmath>
#include <iomanip>
#include <sstream>

namespace mhla::cuda_bench {
namespace {

std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out << '\\';
    out << (static_cast<unsigned char>(c) < ' ' ? ' ' : c);
  }
  out << '"';
  return out.str();
}

std::string number(double x) {
  if (!std::isfinite(x)) return "null";  // JSON has no infinity
  std::ostringstream out;
  out << std::setprecision(9) << x;
  return out.str();
}

/// Prints {"name": value, ...}.
class Object {
 public:
  Object& text(const char* name, const std::string& value) { return raw(name, quoted(value)); }
  Object& value(const char* name, double x) { return raw(name, number(x)); }
  Object& raw(const char* name, const std::string& json) {
    body_ += (body_.empty() ? "" : ", ") + quoted(name) + ": " + json;
    return *this;
  }
  std::string str() const { return "{" + body_ + "}"; }

 private:
  std::string body_;
};

std::string axes(const GridShape& g) {
  return std::to_string(g[0]) + "x" + std::to_string(g[1]) + "x" + std::to_string(g[2]);
}

std::string json(const Result& r, const Context& context) {
  const Shape& s = r.subject.shape;
  Object object;
  object.text("name", r.subject.label())
      .text("operation", name(r.subject.form))
      .text("source", s.source)
      .value("B", bench::number(s.batch))
      .value("H", bench::number(s.heads))
      .value("D", bench::number(s.width))
      .value("E", bench::number(s.values))
      .text("grid", axes(s.grid))
      .text("block", axes(s.block))
      .text("form", r.form)
      .text("reason", r.reason)
      .text("kernels", r.kernels)
      .value("workspace_bytes", r.workspace_bytes)
      .value("flops", r.cost.flops)
      .value("bytes", r.cost.bytes)
      .value("floor_seconds", floor_seconds(r, context))
      .value("relative_error", r.deviation.relative)
      .value("error_over_bound", r.deviation.over_bound)
      .raw("right", r.right() ? "true" : "false")
      .value("seconds", r.seconds.median)
      .value("fastest", r.seconds.fastest)
      .value("repeatability", r.seconds.repeatability)
      .value("replay_seconds", r.replay);
  return object.str();
}

/// Right-aligned number with `digits` digits after the point; "-" for an absent number.
std::string cell(double x, int width, int digits) {
  std::ostringstream out;
  out << std::setw(width);
  if (x > 0 && std::isfinite(x)) {
    out << std::fixed << std::setprecision(digits) << x;
  } else {
    out << "-";
  }
  return out.str();
}

std::string left(const std::string& text, int width) {
  std::ostringstream out;
  out << std::left << std::setw(width) << text;
  return out.str();
}

std::string scientific(double x) {
  std::ostringstream out;
  out << std::setprecision(2) << x;
  return out.str();
}

}  // namespace

double floor_seconds(const Result& result, const Context& context) {
  return result.cost.bytes / context.copy_bandwidth;
}

void print_context(std::ostream& out, const Context& c) {
  out << c.gpu << ", " << c.multiprocessors << " multiprocessors, L2 "
      << scientific(c.cache_bytes / 1e6) << " MB, driver " << c.driver << ", CUDA " << c.runtime
      << ", " << c.compiler << ", commit " << c.commit << "\n"
      << "kernels of " << c.kernels << "; a copy moves " << cell(c.copy_bandwidth / 1e12, 0, 3)
      << " TB/s, read and written\n";
}

void print_head(std::ostream& out) {
  out << left("case", 20) << left("form", 13) << left("kernels", 13)
      << "       us  of copy  TFLOP/s   error  "
      << "replay us\n";
}

void print_row(std::ostream& out, const Result& r, const Context& context) {
  const double seconds = r.seconds.median;
  out << left(r.subject.label(), 20) << left(r.form, 13) << left(r.kernels, 13);
  if (r.right()) {
    out << cell(seconds * 1e6, 9, 1) << cell(floor_seconds(r, context) / seconds, 9, 2)
        << cell(r.cost.flops / seconds / 1e12, 9, 1) << cell(r.deviation.relative, 8, 4)
        << cell(r.replay * 1e6, 11, 1);
  } else {
    out << "ERROR: wrong and not timed: " << r.deviation.not_finite
        << " numbers not written or not finite, an error of " << scientific(r.deviation.relative)
        << " of a row's norm, " << scientific(r.deviation.over_bound) << " times the bound";
  }
  out << "\n";
  out.flush();
}

void write_json(std::ostream& out, const Context& c, const std::vector<Result>& results) {
  Object context;
  context.text("gpu", c.gpu)
      .value("multiprocessors", c.multiprocessors)
      .value("cache_bytes", c.cache_bytes)
      .text("driver", c.driver)
      .text("runtime", c.runtime)
      .text("compiler", c.compiler)
      .text("kernels", c.kernels)
      .text("commit", c.commit)
      .value("copy_bandwidth", c.copy_bandwidth);
  out << "{\"context\": " << context.str() << ",\n\"cases\": [";
  for (std::size_t i = 0; i < results.size(); ++i) {
    out << (i == 0 ? "\n" : ",\n") << json(results[i], c);
  }
  out << "\n]}\n";
}

}  // namespace mhla::cuda_bench
