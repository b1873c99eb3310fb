"""The sentences of privacy statements about facts, by language and key (`terrine.privacy.facts`)."""

SENTENCES: dict[str, dict[str, str]] = {
    "en": {
        "from_programs": "{count} images that computer programs drew without using the private data",
        "from_rows": "{count} rows that the operator declared public",
        "from_images": "{count} real images that the operator declared public",
        "from_dataset": "{count} images of a public dataset",
        "from_provided": "{count} examples that the operator provided as public",
        "unprotected_rows": "The operator declared {count} rows of this table public. They may become known as they "
        "are, and the people they describe are not protected.",
        "unprotected_images": "The operator declared {count} images from these data public. They may become known as "
        "they are, and the people they come from are not protected.",
        "unprotected_dataset": "{count} images of the public dataset served as public examples. They are not "
        "protected.",
        "unprotected_earlier": "{count} records were published by an earlier run of the same account. They are not "
        "protected.",
        "files_images": "The student’s files contain no real image. The images stored with it were made by computer "
        "programs.",
        "files_rows": "The student’s files contain no row of the table. From the public rows they contain the mean "
        "and spread of each column of numbers, each distinct entry of the other columns, word for word, and, "
        "depending on the kind of student, single values as thresholds.",
        "who_image": "Every private record. One record is one image with its class. If a person contributed several "
        "images, each image is protected separately, but not all of them together.",
        "who_dicom": "Every private record. One record is what one row of the list of labels describes (an image "
        "with all its frames, a series or a study), with its class. If a person contributed several records, each is "
        "protected separately, but not all of them together.",
        "who_volume": "Every private record. One record is one scan (volume) with its class. If a person contributed "
        "several scans, each is protected separately, but not all of them together.",
        "who_row": "Every private record. One record is one row of the table, with everything in it. If several rows "
        "describe one person, each row is protected separately, but not all of them together.",
        "who_images_of_one": "Every private group. One group is all images that belong together, for example all "
        "images of one patient, as a whole.",
        "who_rows_of_one": "Every private group. One group is all rows that belong together, for example all rows "
        "about one patient, as a whole.",
        "who_label": "The class of one record, for example the diagnosis. The records themselves are not protected.",
        "outside_record": "If one person has several records, all of them together may reveal more than ε says.",
        "outside_group": "If records of one person were entered as different groups, each group is protected "
        "separately only.",
        "outside_label": "The images may become known. Only their classes are protected.",
        "outside_elsewhere": "Publications about the same people elsewhere, which this site’s ledger does not "
        "contain, add to what can be learned.",
        "outside_held_out": "ε does not cover records that were set aside for testing. They taught no model.",
        "outside_accuracy": "An accuracy measured on them is published with noise. It costs a separate ε of {count}, "
        "which is not part of the figures here. Other figures measured on private records are not covered.",
        "outside_evaluation": "Figures measured on private records, such as the student’s accuracy, are not covered "
        "by this ε.",
        "outside_units": "The operator stated that the number of protected records or groups is about {count}. If "
        "this number was taken from the data, ε does not cover it.",
        "outside_tuning": "Settings that someone chose by looking at private results are not covered.",
        "outside_general": "The model learns general patterns. They can also be true of people whose data were not "
        "used; that does not breach the guarantee.",
        "outside_public_teachers": "The names of the classes, the number of teachers and the settings are public.",
        "outside_public": "The names of the classes and the settings are public.",
        "outside_operator": "The guarantee does not hold if the operator does not do what is described here, or if "
        "someone gains access to the private folder.",
        "outside_law": "This statement does not decide whether the data may be used at all, or whether people "
        "consented.",
    },
    "de": {
        "from_programs": "{count} Bilder, die Computerprogramme ohne Verwendung der privaten Daten gezeichnet haben",
        "from_rows": "{count} Zeilen, die der Betreiber für öffentlich erklärt hat",
        "from_images": "{count} echte Bilder, die der Betreiber für öffentlich erklärt hat",
        "from_dataset": "{count} Bilder aus einem öffentlichen Datensatz",
        "from_provided": "{count} Beispiele, die der Betreiber als öffentlich bereitgestellt hat",
        "unprotected_rows": "Der Betreiber hat {count} Zeilen dieser Tabelle für öffentlich erklärt. Sie können "
        "unverändert bekannt werden, und die darin beschriebenen Personen sind nicht geschützt.",
        "unprotected_images": "Der Betreiber hat {count} Bilder aus diesen Daten für öffentlich erklärt. Sie können "
        "unverändert bekannt werden, und die Personen, von denen sie stammen, sind nicht geschützt.",
        "unprotected_dataset": "{count} Bilder des öffentlichen Datensatzes dienten als öffentliche Beispiele. Sie "
        "sind nicht geschützt.",
        "unprotected_earlier": "{count} Einträge wurden bereits von einem früheren Lauf desselben Kontos "
        "veröffentlicht. Sie sind nicht geschützt.",
        "files_images": "Die Dateien des Schülermodells enthalten kein echtes Bild. Die beigelegten Bilder stammen "
        "von Computerprogrammen.",
        "files_rows": "Die Dateien des Schülermodells enthalten keine Zeile der Tabelle. Aus den öffentlichen Zeilen "
        "enthalten sie Mittelwert und Streuung jeder Zahlenspalte, jeden Eintrag der übrigen Spalten im Wortlaut "
        "und, je nach Art des Schülermodells, einzelne Werte als Schwellen.",
        "who_image": "Jeder private Eintrag. Ein Eintrag ist ein Bild mit seiner Klasse. Hat eine Person mehrere "
        "Bilder beigetragen, so ist jedes Bild einzeln geschützt, aber nicht alle zusammen.",
        "who_dicom": "Jeder private Eintrag. Ein Eintrag ist das, was eine Zeile der Liste mit den Klassen "
        "beschreibt (ein Bild mit allen Einzelbildern, eine Serie oder eine Studie), samt der Klasse. Hat eine "
        "Person mehrere Einträge beigetragen, so ist jeder einzeln geschützt, aber nicht alle zusammen.",
        "who_volume": "Jeder private Eintrag. Ein Eintrag ist eine dreidimensionale Aufnahme mit ihrer Klasse. Hat "
        "eine Person mehrere Aufnahmen beigetragen, so ist jede einzeln geschützt, aber nicht alle zusammen.",
        "who_row": "Jeder private Eintrag. Ein Eintrag ist eine Zeile der Tabelle mit allem, was darin steht. "
        "Beschreiben mehrere Zeilen eine Person, so ist jede Zeile einzeln geschützt, aber nicht alle zusammen.",
        "who_images_of_one": "Jede private Gruppe. Eine Gruppe umfasst alle Bilder, die zusammengehören, zum "
        "Beispiel alle Bilder einer Patientin oder eines Patienten, als Ganzes.",
        "who_rows_of_one": "Jede private Gruppe. Eine Gruppe umfasst alle Zeilen, die zusammengehören, zum Beispiel "
        "alle Zeilen über eine Patientin oder einen Patienten, als Ganzes.",
        "who_label": "Die Klasse eines Eintrags, zum Beispiel die Diagnose. Die Einträge selbst sind nicht geschützt.",
        "outside_record": "Hat eine Person mehrere Einträge, so können alle zusammen mehr verraten, als ε angibt.",
        "outside_group": "Wurden Einträge einer Person als verschiedene Gruppen erfasst, so ist jede dieser Gruppen "
        "nur für sich geschützt.",
        "outside_label": "Die Bilder können bekannt werden. Geschützt sind nur ihre Klassen.",
        "outside_elsewhere": "Veröffentlichungen über dieselben Menschen an anderer Stelle, die das Register dieser "
        "Einrichtung nicht enthält, erhöhen, was sich insgesamt erfahren lässt.",
        "outside_held_out": "Einträge, die zum Testen beiseitegelegt wurden, deckt ε nicht ab. Kein Modell hat aus "
        "ihnen gelernt.",
        "outside_accuracy": "Eine an ihnen gemessene Trefferquote wird mit Rauschen veröffentlicht. Sie kostet ein "
        "eigenes ε von {count}, das in den Zahlen hier nicht enthalten ist. Andere an privaten Einträgen gemessene "
        "Zahlen sind nicht abgedeckt.",
        "outside_evaluation": "Zahlen, die an privaten Einträgen gemessen wurden, etwa die Trefferquote des "
        "Schülermodells, deckt dieses ε nicht ab.",
        "outside_units": "Der Betreiber hat angegeben, dass es etwa {count} geschützte Einträge oder Gruppen gibt. "
        "Stammt diese Zahl aus den Daten, so deckt ε sie nicht ab.",
        "outside_tuning": "Einstellungen, die jemand nach einem Blick auf private Ergebnisse gewählt hat, sind nicht "
        "abgedeckt.",
        "outside_general": "Das Modell lernt allgemeine Zusammenhänge. Sie können auch auf Menschen zutreffen, die "
        "nicht vorkommen; das verletzt die Garantie nicht.",
        "outside_public_teachers": "Die Namen der Klassen, die Zahl der Lehrermodelle und die Einstellungen sind "
        "öffentlich.",
        "outside_public": "Die Namen der Klassen und die Einstellungen sind öffentlich.",
        "outside_operator": "Die Garantie gilt nicht, wenn der Betreiber nicht tut, was hier beschrieben ist, oder "
        "wenn sich jemand Zugang zum privaten Ordner verschafft.",
        "outside_law": "Ob die Daten überhaupt verwendet werden dürfen und ob die Betroffenen eingewilligt haben, "
        "entscheidet diese Erklärung nicht.",
    },
    "fr": {
        "from_programs": "{count} images dessinées par des programmes informatiques sans recours aux données privées",
        "from_rows": "{count} lignes que l’opérateur a déclarées publiques",
        "from_images": "{count} images réelles que l’opérateur a déclarées publiques",
        "from_dataset": "{count} images d’un jeu de données public",
        "from_provided": "{count} exemples que l’opérateur a fournis comme publics",
        "unprotected_rows": "L’opérateur a déclaré publiques {count} lignes de ce tableau. Elles peuvent être "
        "connues telles quelles, et les personnes qu’elles décrivent ne sont pas protégées.",
        "unprotected_images": "L’opérateur a déclaré publiques {count} images de ces données. Elles peuvent être "
        "connues telles quelles, et les personnes dont elles proviennent ne sont pas protégées.",
        "unprotected_dataset": "{count} images du jeu de données public ont servi d’exemples publics. Elles ne sont "
        "pas protégées.",
        "unprotected_earlier": "{count} enregistrements ont déjà été publiés par une exécution antérieure du même "
        "compte. Ils ne sont pas protégés.",
        "files_images": "Les fichiers du modèle élève ne contiennent aucune image réelle. Les images qui y sont "
        "jointes ont été produites par des programmes informatiques.",
        "files_rows": "Les fichiers du modèle élève ne contiennent aucune ligne du tableau. Des lignes publiques, "
        "ils contiennent la moyenne et la dispersion de chaque colonne de nombres, chaque valeur des autres "
        "colonnes, mot pour mot, et, selon le type de modèle élève, des valeurs isolées servant de seuils.",
        "who_image": "Chaque enregistrement privé. Un enregistrement est une image avec sa classe. Si une personne a "
        "fourni plusieurs images, chacune est protégée séparément, mais non toutes ensemble.",
        "who_dicom": "Chaque enregistrement privé. Un enregistrement est ce que décrit une ligne de la liste des "
        "classes (une image avec toutes ses trames, une série ou une étude), avec sa classe. Si une personne a "
        "fourni plusieurs enregistrements, chacun est protégé séparément, mais non tous ensemble.",
        "who_volume": "Chaque enregistrement privé. Un enregistrement est un examen en volume avec sa classe. Si une "
        "personne a fourni plusieurs examens, chacun est protégé séparément, mais non tous ensemble.",
        "who_row": "Chaque enregistrement privé. Un enregistrement est une ligne du tableau avec tout son contenu. "
        "Si plusieurs lignes décrivent une même personne, chacune est protégée séparément, mais non toutes ensemble.",
        "who_images_of_one": "Chaque groupe privé. Un groupe réunit toutes les images qui vont ensemble, par exemple "
        "toutes celles d’une même patiente ou d’un même patient, comme un tout.",
        "who_rows_of_one": "Chaque groupe privé. Un groupe réunit toutes les lignes qui vont ensemble, par exemple "
        "toutes celles d’une même patiente ou d’un même patient, comme un tout.",
        "who_label": "La classe d’un enregistrement, par exemple le diagnostic. Les enregistrements eux-mêmes ne "
        "sont pas protégés.",
        "outside_record": "Si une personne a plusieurs enregistrements, leur ensemble peut en révéler plus que ne "
        "l’indique ε.",
        "outside_group": "Si des enregistrements d’une même personne ont été saisis comme des groupes différents, "
        "chacun de ces groupes n’est protégé que séparément.",
        "outside_label": "Les images peuvent être dévoilées. Seules leurs classes sont protégées.",
        "outside_elsewhere": "Les publications sur les mêmes personnes faites ailleurs, que le registre de cet "
        "établissement ne contient pas, s’y ajoutent.",
        "outside_held_out": "ε ne couvre pas les enregistrements mis de côté pour les tests. Ils n’ont servi à "
        "l’apprentissage d’aucun modèle.",
        "outside_accuracy": "Une exactitude mesurée sur eux est publiée avec du bruit. Elle coûte un ε propre de "
        "{count}, qui n’est pas compris dans les chiffres donnés ici. Les autres chiffres mesurés sur des "
        "enregistrements privés ne sont pas couverts.",
        "outside_evaluation": "Les chiffres mesurés sur des enregistrements privés, comme l’exactitude du modèle "
        "élève, ne sont pas couverts par cet ε.",
        "outside_units": "L’opérateur a indiqué qu’il y a environ {count} enregistrements ou groupes protégés. Si ce "
        "nombre provient des données, ε ne le couvre pas.",
        "outside_tuning": "Les réglages que quelqu’un aurait choisis en regardant des résultats privés ne sont pas "
        "couverts.",
        "outside_general": "Le modèle apprend des tendances générales. Elles peuvent aussi être vraies de personnes "
        "qui n’ont pas participé ; la garantie n’en est pas rompue.",
        "outside_public_teachers": "Les noms des classes, le nombre de modèles enseignants et les réglages sont "
        "publics.",
        "outside_public": "Les noms des classes et les réglages sont publics.",
        "outside_operator": "La garantie ne vaut pas si l’opérateur ne fait pas ce qui est décrit ici, ou si "
        "quelqu’un accède au dossier privé.",
        "outside_law": "Cette déclaration ne dit pas si les données peuvent être utilisées, ni si les personnes y "
        "ont consenti.",
    },
    "es": {
        "from_programs": "{count} imágenes dibujadas por programas informáticos sin usar los datos privados",
        "from_rows": "{count} filas que el operador declaró públicas",
        "from_images": "{count} imágenes reales que el operador declaró públicas",
        "from_dataset": "{count} imágenes de un conjunto de datos público",
        "from_provided": "{count} ejemplos que el operador aportó como públicos",
        "unprotected_rows": "El operador declaró públicas {count} filas de esta tabla. Pueden llegar a conocerse tal "
        "como están, y las personas a las que describen no están protegidas.",
        "unprotected_images": "El operador declaró públicas {count} imágenes de estos datos. Pueden llegar a "
        "conocerse tal como están, y las personas de las que proceden no están protegidas.",
        "unprotected_dataset": "{count} imágenes del conjunto de datos público sirvieron de ejemplos públicos. No "
        "están protegidas.",
        "unprotected_earlier": "{count} registros ya fueron publicados por una ejecución anterior de la misma "
        "cuenta. No están protegidos.",
        "files_images": "Los archivos del modelo alumno no contienen ninguna imagen real. Las imágenes que lo "
        "acompañan fueron creadas por programas informáticos.",
        "files_rows": "Los archivos del modelo alumno no contienen ninguna fila de la tabla. De las filas públicas "
        "contienen la media y la dispersión de cada columna numérica, cada valor de las demás columnas, palabra por "
        "palabra, y, según el tipo de modelo alumno, valores sueltos como umbrales.",
        "who_image": "Cada registro privado. Un registro es una imagen con su clase. Si una persona aportó varias "
        "imágenes, cada una está protegida por separado, pero no todas juntas.",
        "who_dicom": "Cada registro privado. Un registro es lo que describe una fila de la lista de clases (una "
        "imagen con todos sus fotogramas, una serie o un estudio), con su clase. Si una persona aportó varios "
        "registros, cada uno está protegido por separado, pero no todos juntos.",
        "who_volume": "Cada registro privado. Un registro es una exploración en volumen con su clase. Si una persona "
        "aportó varias exploraciones, cada una está protegida por separado, pero no todas juntas.",
        "who_row": "Cada registro privado. Un registro es una fila de la tabla con todo lo que contiene. Si varias "
        "filas describen a una misma persona, cada fila está protegida por separado, pero no todas juntas.",
        "who_images_of_one": "Cada grupo privado. Un grupo reúne todas las imágenes que van juntas, por ejemplo "
        "todas las de un mismo paciente, como un todo.",
        "who_rows_of_one": "Cada grupo privado. Un grupo reúne todas las filas que van juntas, por ejemplo todas las "
        "de un mismo paciente, como un todo.",
        "who_label": "La clase de un registro, por ejemplo el diagnóstico. Los registros mismos no están protegidos.",
        "outside_record": "Si una persona tiene varios registros, todos juntos pueden revelar más de lo que indica ε.",
        "outside_group": "Si se introdujeron registros de una misma persona como grupos distintos, cada uno de esos "
        "grupos solo está protegido por separado.",
        "outside_label": "Las imágenes pueden llegar a conocerse. Solo están protegidas sus clases.",
        "outside_elsewhere": "Las publicaciones sobre las mismas personas en otros lugares, que el registro contable "
        "de esta institución no contiene, se suman a esto.",
        "outside_held_out": "ε no cubre los registros apartados para las pruebas. Ningún modelo aprendió de ellos.",
        "outside_accuracy": "Una exactitud medida con ellos se publica con ruido. Cuesta un ε propio de {count}, que "
        "no está incluido en las cifras de esta página. Otras cifras medidas con registros privados no están "
        "cubiertas.",
        "outside_evaluation": "Las cifras medidas con registros privados, como la exactitud del modelo alumno, no "
        "están cubiertas por este ε.",
        "outside_units": "El operador indicó que hay unos {count} registros o grupos protegidos. Si ese número "
        "procede de los datos, ε no lo cubre.",
        "outside_tuning": "Los ajustes que alguien haya elegido mirando resultados privados no están cubiertos.",
        "outside_general": "El modelo aprende patrones generales. También pueden cumplirse en personas que no "
        "participaron; eso no vulnera la garantía.",
        "outside_public_teachers": "Los nombres de las clases, el número de modelos maestros y los ajustes son "
        "públicos.",
        "outside_public": "Los nombres de las clases y los ajustes son públicos.",
        "outside_operator": "La garantía no vale si el operador no hace lo que aquí se describe o si alguien accede "
        "a la carpeta privada.",
        "outside_law": "Esta declaración no dice si los datos pueden usarse ni si las personas dieron su "
        "consentimiento.",
    },
}
