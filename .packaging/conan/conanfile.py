"""The Conan 2 recipe of the checkout that it lies in.

conan create .packaging/conan -s compiler.cppstd=20
"""

import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class Mhla(ConanFile):
    name = "mhla"
    description = "Multi-head linear attention, header-only, on Eigen"
    license = "MIT"
    topics = ("attention", "transformer", "eigen", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {
        "io": [True, False],  # mhla::io: needs nlohmann_json
        "system_dependencies": [True, False],  # Eigen and nlohmann_json from the system
    }
    default_options = {"io": False, "system_dependencies": False}

    @property
    def _checkout(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        header = os.path.join(self._checkout, "include", "mhla", "core", "version.hpp")
        self.version = re.search(r'kVersion\[\] = "(.+)"', load(self, header))[1]

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "include/*"):
            copy(self, pattern, self._checkout, self.export_sources_folder)

    def requirements(self):
        if not self.options.system_dependencies:
            self.requires("eigen/[>=3.4]")
            if self.options.io:
                self.requires("nlohmann_json/[>=3.10]")

    def validate(self):
        check_min_cppstd(self, 20)

    def package_id(self):
        self.info.clear()

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCHMARKS"):
            toolchain.cache_variables[f"MHLA_BUILD_{part}"] = False
        toolchain.generate()

    def package(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        # find_package reads mhla's installed file, with its components.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "mhla")]
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["pthread"]
